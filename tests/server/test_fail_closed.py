"""The process does not serve where the guard is not in place.

SGLang's plugin loader logs what goes wrong and goes on: sglang 0.5.23, srt/plugins/__init__.py
and hook_registry.py. Maintainer's word: sglang pull request 37547.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.scenarios import SCENARIOS

REPOSITORY = Path(__file__).parents[2]
REFUSES, WRONG_USAGE = 78, 2
SERVES = ("nothing_is_wrong", "serve")


@pytest.fixture(scope="module")
def ends() -> dict[str, dict[str, Any]]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.server.scenarios"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    result: dict[str, dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("scenario", SERVES)
def test_a_process_with_the_guard_in_place_serves(
    ends: dict[str, dict[str, Any]], scenario: str
) -> None:
    assert ends[scenario]["exit"] == 0, ends[scenario]["said"]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if not name.startswith(SERVES)])
def test_a_process_without_the_whole_guard_does_not_serve(
    ends: dict[str, dict[str, Any]], scenario: str
) -> None:
    end = ends[scenario]

    assert end["exit"] == REFUSES, end["said"]
    assert "sglang-lp: this process does not serve" in end["said"]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name.startswith("serve_")])
def test_the_command_does_not_serve_where_sglang_left_the_guard_out(
    ends: dict[str, dict[str, Any]], scenario: str
) -> None:
    end = ends[scenario]

    assert end["exit"] == WRONG_USAGE, end["said"]
    assert "sglang-lp serve: SGLang did not load the guard" in end["said"]
