"""Runs the core of the engine tests on each supported SGLang, and keeps a table.

A part of ``make test SUITE=versions``, which installs the environments first. Arguments are the
releases to run, all by default; the stored results of the others stay.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import orjson

from benchmarks import tables
from benchmarks.stored import FOLDER, store
from scripts.canary import failures
from scripts.environments import PYTHON, RELEASES
from scripts.targets import ON_TWO_CORES
from sglang_lp.server.versions import NEWEST

__all__ = ["PAGE", "STORED", "main", "table"]

STORED = FOLDER / "versions.json"
PAGE = Path("docs/versions.md")
_BEGIN, _END = "<!-- begin: make test SUITE=versions -->", "<!-- end -->"
_PYTHONS = {release: f".venv-{release}/bin/python" for release in RELEASES} | {NEWEST: PYTHON}

#: Built-ins, rules, reports, faults, refusals; the other modules use fewer of SGLang's internals.
CORE = tuple(
    f"tests/live/test_{subject}.py"
    for subject in (
        *("combinations", "decided", "endpoints", "engine", "faults", "history", "injected"),
        *("processors", "refused", "rollouts", "speculation", "workers"),
    )
)
#: Servers that differ from the others only in their load or their number.
LEFT_OUT = ("squeezed", "parallel")

WHICH = (*CORE, "-k", " and ".join(f"not {server}" for server in LEFT_OUT))

#: Test module -> outcome -> how many tests.
Outcomes = dict[str, dict[str, int]]


def main(*asked: str) -> int:
    """Run the tests, store what came out and renew the page; return an exit code."""
    stored: dict[str, Outcomes] = orjson.loads(STORED.read_bytes()) if STORED.exists() else {}
    failed: list[str] = []
    for release, python in _PYTHONS.items():
        if asked and release not in asked:
            continue
        results = Path(f"build/versions/{release}.xml")
        results.parent.mkdir(parents=True, exist_ok=True)
        results.unlink(missing_ok=True)
        options = ("-q", f"--junit-xml={results}", *ON_TWO_CORES)
        command = (python, "-m", "pytest", *options, *WHICH)
        done = subprocess.run(command, check=False)
        xml = results.read_text() if results.exists() else None
        failed += [f"SGLang {release}: {name}" for name in failures(done.returncode, xml)]
        stored[release] = _outcomes(xml or "<none/>")
        store({release: stored[release] for release in _PYTHONS if release in stored}, STORED)
    PAGE.write_text(_renewed(PAGE.read_text(), table(stored)))
    print("\n".join((table(stored), *failed)))
    return 1 if failed else 0


def _outcomes(results: str) -> Outcomes:
    """Count what pytest wrote as JUnit's XML, for each module."""
    counts: dict[str, Counter[str]] = {}
    for case in ET.fromstring(results).iter("testcase"):  # noqa: S314 - pytest's own
        module = str(case.get("classname")).rpartition(".")[2]
        outcome = "passed"
        for tag, named in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
            if case.find(tag) is not None:
                outcome = named
        counts.setdefault(module, Counter())[outcome] += 1
    return {module: dict(sorted(counts[module].items())) for module in sorted(counts)}


def table(stored: dict[str, Outcomes]) -> str:
    """Return the table of the page: a row for each test module, a column for each SGLang."""
    releases = [release for release in _PYTHONS if release in stored]
    modules = sorted({module for release in releases for module in stored[release]})
    rows = [
        [f"`{module}`", *(_cell(stored[release].get(module, {})) for release in releases)]
        for module in modules
    ]
    totals = [sum((Counter(each) for each in stored[x].values()), Counter()) for x in releases]
    rows.append(["all", *map(_cell, totals)])
    return "\n".join(tables.table(["tests/live", *releases], rows))


def _cell(counts: dict[str, int]) -> str:
    said = [f"{counts.get('passed', 0)} pass"]
    said += [f"{counts[x]} {x}" for x in ("failed", "skipped") if counts.get(x)]
    return ", ".join(said)


def _renewed(page: str, renewed: str) -> str:
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{renewed}\n{_END}{after}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
