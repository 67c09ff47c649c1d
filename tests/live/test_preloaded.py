"""Processes forked from one that has imported SGLang, as far as tests rely on them."""

from __future__ import annotations

import orjson
import pytest

from support.processes import running
from support.settings import environment

pytestmark = pytest.mark.engine

PROGRAM = """
import json, multiprocessing, os, sys, time

def told():
    print(json.dumps([os.environ.get("OWN"), sys.argv[1:], "sglang" in sys.modules]), flush=True)

def spawned(ending):
    told()
    sys.exit(ending)

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    told()
    process = multiprocessing.Process(target=spawned, args=(5,))
    process.start()
    process.join()
    sys.exit(process.exitcode + 2)
"""


def test_a_forked_process_and_those_it_spawns_are_as_if_started(tmp_path):
    (tmp_path / "forked_program.py").write_text(PROGRAM)
    command = ("python", "-m", "forked_program", "--flag", "a b")
    log = tmp_path / "log"

    with running(command, environment({"OWN": "x"}, [tmp_path]), log, forked=True) as process:
        assert process.wait(60) == 7

    lines = [orjson.loads(line) for line in log.read_text().splitlines()]
    assert lines == [["x", ["--flag", "a b"], True]] * 2


def test_a_forked_process_that_fails_leaves_its_traceback(tmp_path):
    log = tmp_path / "log"

    with running(("python", "-m", "support.nothing"), environment({}), log, forked=True) as process:
        assert process.wait(60) == 1

    assert "No module named support.nothing" in log.read_text()
