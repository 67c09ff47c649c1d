"""A target goes on without what it can do without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGET = """
from scripts import dev
steps = (dev.Step("fails", ("false",), needed={}), dev.Step("comes after", ("echo", "it came")))
dev.TARGETS = {{"demo": steps}}
raise SystemExit(dev.main("demo"))
"""


@pytest.mark.parametrize(("needed", "code", "came"), [(True, 1, False), (False, 0, True)])
def test_a_target_fails_with_a_step_that_it_needs_and_goes_on_without_another(needed, code, came):
    done = subprocess.run(
        [sys.executable, "-c", TARGET.format(needed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert ("it came" in done.stdout) is came
    assert ("goes on without it" in done.stdout) is came
