"""Every rank of a model makes the same edits: they depend on what all ranks hold alike."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from sglang_lp import builtins
from tests.builtins.rank import PARTING, TEXTS
from tests.live.test_history import CASES

ROOT = Path(__file__).parents[2]
#: What runs in a scheduler: every rank of a model has one.
PARTS = (
    "_engine",
    "edits",
    "adapters",
    "builtins",
    "policy",
    "server/gate",
    "server/scheduler",
    "text",
)
SOURCES = sorted(path for part in PARTS for path in (ROOT / "sglang_lp" / part).rglob("*.py"))
#: Clocks, and chance that a rank would draw for itself.
LOCAL = {"datetime", "random", "secrets", "socket", "time", "uuid"}
CALLS = {"getpid", "hash", "urandom", "rand", "randn", "randint", "multinomial"}
#: Who may, because no edit hangs on it.
LOCAL_ONLY = {
    # How long a constructor takes, in the HTTP process: a scheduler tries none.
    "adapters/trial.py": {"time"},
    # Hashes whose matches are the same whatever they are drawn from; two ranks draw others here.
    "builtins/repetition/ngrams.py": {"secrets"},
    # Hashes whose matches are compared token by token.
    "builtins/repetition/no_repeat_ngram_form.py": {"secrets"},
    # When a prefill server is told that its request was turned away.
    "server/scheduler/disaggregated.py": {"time"},
    # How long a step took, for metrics.
    "server/scheduler/sampling.py": {"time"},
    "server/scheduler/beams/steps.py": {"time"},
    # How long a grammar took: nothing is decided by it where there are several ranks.
    "server/scheduler/grammar_time.py": {"time"},
}


def rank(number):
    run = subprocess.run(
        [sys.executable, "-m", "tests.builtins.rank", str(number)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(number)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return orjson.loads(run.stdout)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_make_the_same_edits():
    one, other = rank(1), rank(2)
    differing = [
        name for (name, digest), (_, same) in zip(one, other, strict=True) if digest != same
    ]

    # The processors made to differ between ranks are found, and no other.
    assert {name.partition(" ")[0] for name in differing} == {kind.__name__ for kind in PARTING}
    assert len({digest for _, digest in one}) > len(one) // 4  # they did edit


def test_every_builtin_is_played():
    played = tuple(processor for processor, _ in (*CASES, *TEXTS))
    covered = {processor.__name__ for processor in played}
    assert [
        name
        for name in builtins.__all__
        if name not in covered and not issubclass(getattr(builtins, name), played)
    ] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_in_a_scheduler_asks_a_clock_or_chance(path):
    tree = ast.parse(path.read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    called = {
        getattr(node.func, "attr", getattr(node.func, "id", ""))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    allowed = LOCAL_ONLY.get(str(path.relative_to(ROOT / "sglang_lp")), set())

    assert imported & LOCAL <= allowed
    assert called & CALLS == set()
