"""Editors and type checkers know the parameters of each built-in."""

import subprocess
import sys

import pytest

from scripts.calls import STUB, write_stub

RIGHT = """
from typing import Any

from sglang_lp import attach
from sglang_lp.builtins import DRYLogitProcessor
from sglang_lp.client import Attachment, attach_each

params: dict[str, Any] = {"thinking_budget": 512}
ban: Attachment = attach("BadWordsLogitProcessor", words=("as an AI",), ignore_case=True)
think = attach("Qwen3ThinkingBudgetLogitProcessor", **params)
attach("ThinkingBudgetLogitProcessor", thinking_budget=None, closing_token_ids=range(3, 6))
attach("ScheduledBiasLogitProcessor", token_ids={7}, bias=2)
attach([ban, think, "DRYLogitProcessor"])
attach("ChainLogitProcessor", chain=["DRYLogitProcessor"], **{"0.dry_base": 2})
attach(DRYLogitProcessor, dry_multiplier=0.8)
attach_each([ban, None])
"""
WRONG = """
from sglang_lp import attach
attach("BadWordsLogitProcessor", word=["as an AI"])
attach("BadWordLogitProcessor", words=["as an AI"])
attach("ThinkingBudgetLogitProcessor", thinking_budget="512")
attach("MinLengthLogitProcessor")
attach("ScheduledBiasLogitProcessor", token_ids=[7], where="thoughts")
attach(["DRYLogitProcessor"], dry_multiplier=0.8)
"""


def test_the_stub_is_what_the_schemas_say():
    assert STUB.read_text() == write_stub(), (
        "calls.pyi is not what the schemas say; write it anew with "
        "`.venv/bin/python -m scripts.calls`"
    )


@pytest.mark.slow
def test_mypy_takes_right_calls_and_refuses_each_wrong_one(tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "right.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [line.partition(": error: ")[0] for line in wrong] == [
        f"wrong.py:{line}" for line in range(3, 9)
    ], done.stdout
