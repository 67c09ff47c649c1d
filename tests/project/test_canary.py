"""The table of ``make test SUITE=canary`` on another SGLang."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from scripts.canary import Move, environment, failures, hooked, main, moved, source
from scripts.hooked import found

PACKAGE = Path(importlib.util.find_spec("sglang").origin).parent
PYTHON = Path(sys.executable)
#: Changes to a copy of SGLang: module, old text, new text.
CHANGED = (
    # A function is renamed.
    ("srt/managers/tokenizer_manager.py", "create_abort_task", "make_abort_task"),
    # A parameter is dropped.
    ("srt/managers/tp_worker.py", "is_verify: bool = False,", ""),
    # An attribute is gone.
    ("srt/managers/schedule_batch.py", "to_finish", "ends_with"),
)


def side(functions, algorithms=("EAGLE",), processors=("A",), attributes=(), routes=("/a a",)):
    return {
        "functions": functions,
        "attributes": dict(attributes),
        "algorithms": [*algorithms],
        "processors": [*processors],
        "routes": [*routes],
        "unknown_fields": {},
    }


def function(signature="()", source="1", misread=(), others=()):
    return {
        "signature": signature,
        "source": source,
        "misread": [*misread],
        "others": [*others],
    }


def missing(others=()):
    return {"missing": "gone", "others": [*others]}


def test_nothing_moved_is_no_row():
    same = side({"a.b": function()})

    assert moved(same, same) == []


def test_every_kind_of_move_is_a_row_and_first_what_breaks():
    names = ("signed", "written", "same", "misread", "renamed")
    tested = side({**{name: function() for name in names}, "new": missing()}, ["EAGLE", "X"])
    tried = side(
        {
            "signed": function("(self, x: int | None)"),
            "written": function(source="2"),
            "same": function(),
            "misread": function("(y)", misread=["x", "x"]),
            "renamed": missing(["other"]),
            "new": function(),
        },
        ["EAGLE", "Y"],
        ["A", "B"],
        {"A.kept": True, "A.lost": False},
    )

    assert moved(tested, tried) == [
        Move("function", "misread", "a hook misreads `x`; now `(y)`", breaks=True),
        Move("function", "renamed", "gone; new next to it: `other`", breaks=True),
        Move("attribute", "A.lost", "gone", breaks=True),
        Move("function", "signed", "signature, now `(self, x: int | None)`"),
        Move("function", "written", "body"),
        Move("function", "new", "new"),
        Move("algorithm", "Y", "new"),
        Move("algorithm", "X", "gone"),
        Move("processor", "B", "new"),
    ]


def test_a_field_that_no_gate_knows_breaks():
    tried = {**side({}), "unknown_fields": {"a.Body": ["new"]}}

    assert moved(side({}), tried) == [
        Move("field", "a.Body.new", "new, and in no row of the table", breaks=True)
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


@pytest.fixture(scope="module")
def tested():
    return json.loads(json.dumps(found()))  # in this process, which has SGLang anyway


@pytest.mark.timeout(300)
def test_the_supported_sglang_has_what_every_hook_needs(tested):
    assert len(tested["functions"]) > 20
    assert "EAGLE" in tested["algorithms"]
    assert [move for move in moved(tested, tested) if move.breaks] == []


@pytest.mark.timeout(300)
def test_what_a_folder_of_sglang_renamed_and_dropped_is_named(tested, tmp_path):
    copy = tmp_path / "python" / "sglang"
    shutil.copytree(PACKAGE, copy, copy_function=os.symlink)
    for module, was, now in CHANGED:
        (copy / module).unlink()
        (copy / module).write_text((PACKAGE / module).read_text().replace(was, now))

    folder = source(str(tmp_path))
    broken = [move for move in moved(tested, hooked(PYTHON, environment(folder))) if move.breaks]

    renamed, dropped, lost = broken
    assert renamed[:3] == (
        "function",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.create_abort_task",
        "gone; new next to it: `make_abort_task`",
    )
    assert dropped.name.endswith("TpModelWorker.forward_batch_generation")
    assert dropped.state.startswith("a hook misreads `is_verify`; now `(")
    assert lost[:3] == ("attribute", "sglang.srt.managers.schedule_batch.Req.to_finish", "gone")


def test_a_folder_without_sglang_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])

    said = " ".join(capsys.readouterr().err.split())
    assert "expected SGLang's source, a folder with sglang/srt or python/sglang/srt; got" in said
