"""The report of ``make test SUITE=canary`` on another SGLang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.canary import failures, moved

ROOT = Path(__file__).parents[2]


def side(targets, algorithms=("EAGLE",), processors=("A",)):
    return {"targets": targets, "algorithms": [*algorithms], "processors": [*processors]}


def target(signature="()", source="1"):
    return {"signature": signature, "source": source}


def test_nothing_moved_is_no_row():
    same = side({"a.b": target()})

    assert moved(same, same) == []


def test_every_kind_of_move_is_a_row():
    tested = side(
        {name: target() for name in ("gone", "signed", "written", "same")}, ["EAGLE", "X"]
    )
    newest = side(
        {
            "signed": target("(self, x: int | None)"),
            "written": target(source="2"),
            "same": target(),
            "gone": None,
            "new": target(),
        },
        ["EAGLE", "Y"],
        ["A", "B"],
    )

    assert moved(tested, newest) == [
        ("gone", "gone"),
        ("signed", "signature, now `(self, x: int \\| None)`"),
        ("written", "source"),
        ("new", "new"),
        ("Y", "new in SGLang's algorithms"),
        ("X", "gone from SGLang's algorithms"),
        ("B", "new in SGLang's processors"),
    ]


RESULTS = (
    '<testsuites><testsuite><testcase classname="a" name="passes"/>'
    '<testcase classname="a" name="skipped"><skipped/></testcase>'
    '<testcase classname="a" name="fails"><failure/></testcase>'
    '<testcase classname="b" name="breaks"><error/></testcase></testsuite></testsuites>'
)


def test_the_tests_that_do_not_pass_are_named():
    assert failures(1, RESULTS) == ["a.fails", "b.breaks"]


def test_a_run_that_ended_early_is_no_pass():
    assert failures(0, "<testsuites/>") == []
    assert failures(2, "<testsuites/>") == ["pytest, exit code 2"]
    assert failures(-9, None) == ["pytest, exit code -9"]


@pytest.mark.timeout(300)
def test_of_the_supported_sglang_every_target_is_found():
    done = subprocess.run(
        [sys.executable, "-m", "scripts.hooked"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["targets"]) > 20
    assert all(found["targets"].values())
    assert "EAGLE" in found["algorithms"]
