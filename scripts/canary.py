"""Tries another SGLang: one table of what moved under the plugin, and of tests that fail.

``make test SUITE=canary`` installs the newest release in ``.venv-canary`` and tries it.
``.venv/bin/python -m scripts.canary FOLDER`` tries SGLang's source, such as a checkout of its main
branch, with the packages of ``.venv``. The table is also written to ``build/canary.md``; the exit
code is 1 if a guarded server would not start, or if a test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

from benchmarks.tables import table

__all__ = ["Move", "failures", "hooked", "main", "moved", "source"]

TESTED, NEWEST = Path(".venv/bin/python"), Path(".venv-canary/bin/python")
REPORT, RESULTS = Path("build/canary.md"), Path("build/canary.xml")
#: Tests that depend on SGLang: the checks of hooks, and processors on a real engine.
TESTS = ("tests/server", "tests/live")
#: The operator's switch for an untested version.
ALLOWED = {"SGLANG_LP_ALLOW_UNTESTED": "1"}


class Move(NamedTuple):
    """One row of the table.

    Attributes:
        kind: ``"function"``, ``"attribute"``, ``"field"``, ``"algorithm"``, ``"processor"``,
            ``"route"`` or ``"test"``.
        name: Name of what moved.
        state: What happened to it, in Markdown.
        breaks: Whether it keeps a guarded server from starting, or a test from passing.
    """

    kind: str
    name: str
    state: str
    breaks: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, run the tests and write the table; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.canary", description=__doc__)
    parser.add_argument(
        "folder", nargs="?", type=source, help="SGLang's source; by default the one in .venv-canary"
    )
    folder: Path | None = parser.parse_args(arguments).folder
    python = NEWEST if folder is None else TESTED
    env = {**environment(folder), **ALLOWED}
    tested, tried = hooked(TESTED), hooked(python, env)
    name = f"SGLang {tried['version']}" if folder is None else f"The SGLang of `{folder}`"
    heading = f"{name}, tried; {tested['version']} is the newest that is supported."
    moves = moved(tested, tried)
    print(_report(heading, moves), flush=True)
    REPORT.parent.mkdir(exist_ok=True)
    RESULTS.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", f"--junit-xml={RESULTS}", *TESTS]
    done = subprocess.run(command, env=env, check=False)
    failed = failures(done.returncode, RESULTS.read_text() if RESULTS.exists() else None)
    moves += [Move("test", name, "fails", breaks=True) for name in failed]
    REPORT.write_text(_report(heading, moves))
    print(REPORT.read_text())
    return 1 if any(move.breaks for move in moves) else 0


def source(given: str) -> Path:
    """Return the folder that holds SGLang's package: the given one, or ``python`` in a checkout.

    Raises:
        ArgumentTypeError: Neither holds it.
    """
    for folder in (Path(given), Path(given) / "python"):
        if (folder / "sglang" / "srt").is_dir():
            return folder.resolve()
    raise argparse.ArgumentTypeError(
        f"expected SGLang's source, a folder with sglang/srt or python/sglang/srt; got {given}"
    )


def environment(folder: Path | None) -> dict[str, str]:
    """Return the variables of a process that imports SGLang from a folder, or the installed one."""
    paths = [*map(str, filter(None, [folder])), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def hooked(python: Path, env: Mapping[str, str] | None = None) -> Any:
    """Return the output of ``scripts.hooked`` in another process.

    Args:
        python: Its interpreter.
        env: Its variables; this process's by default.
    """
    done = subprocess.run(
        [python, "-m", "scripts.hooked"], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{python} -m scripts.hooked failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def moved(tested: Any, tried: Any) -> list[Move]:
    """Compare two SGLangs; moves that keep a guarded server from starting come first.

    Args:
        tested: Output of ``scripts.hooked`` for the newest supported version.
        tried: Output of ``scripts.hooked`` for the SGLang that is tried.
    """
    moves = [
        move
        for target, after in tried["functions"].items()
        if (move := _function(target, tested["functions"][target], after)) is not None
    ]
    moves += [
        Move("attribute", name, "gone", breaks=True)
        for name, exists in tried["attributes"].items()
        if not exists
    ]
    moves += [
        Move("field", f"{owner}.{name}", "new, and in no row of the table", breaks=True)
        for owner, names in tried["unknown_fields"].items()
        for name in names
    ]
    kinds = ("algorithm", "algorithms"), ("processor", "processors"), ("route", "routes")
    for kind, names in kinds:
        moves += [Move(kind, name, "new") for name in _not_in(tried[names], tested[names])]
        moves += [Move(kind, name, "gone") for name in _not_in(tested[names], tried[names])]
    return sorted(moves, key=lambda move: not move.breaks)


def _function(target: str, before: Any, after: Any) -> Move | None:
    if missing := after.get("missing"):
        new = ", ".join(f"`{name}`" for name in _not_in(after["others"], before["others"]))
        hint = f"; new next to it: {new}" if new else ""
        return Move("function", target, missing + hint, breaks=True)
    now = f"now `{after['signature']}`"
    if after["misread"]:
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(after["misread"]))
        return Move("function", target, f"a hook misreads {names}; {now}", breaks=True)
    if "missing" in before:
        return Move("function", target, "new")
    if before["signature"] != after["signature"]:
        return Move("function", target, f"signature, {now}")
    return Move("function", target, "body") if before["source"] != after["source"] else None


def _not_in(one: Sequence[str], other: Sequence[str]) -> list[str]:
    return sorted({*one} - {*other})


def _report(heading: str, moves: Sequence[Move]) -> str:
    rows = [
        (
            move.kind,
            f"`{move.name}`",
            move.state.replace("|", "\\|"),
            "**yes**" if move.breaks else "no",
        )
        for move in moves
    ]
    head = ("what", "name", "moved", "breaks")
    lines = table(head, rows or [("everything", "", "as it was", "no")])
    return "\n".join((heading, "", *lines, ""))


def failures(code: int, results: str | None) -> list[str]:
    """Return the names of the tests that did not pass, and pytest's own if it did not finish.

    Args:
        code: Exit code of pytest.
        results: Its report as JUnit's XML, which is missing if pytest ended early.
    """
    cases = ET.fromstring(results or "<none/>").iter("testcase")  # noqa: S314 - pytest's own
    failed = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    if code not in {0, 1}:  # 1: it ran all, and some failed
        failed.append(f"pytest, exit code {code}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
