"""Tries the newest SGLang: what moved under the plugin, and which tests no longer pass.

``make test SUITE=canary`` has installed it in ``.venv-canary``. The table is also written to
``build/canary.md``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from benchmarks.tables import table

__all__ = ["failures", "main", "moved"]

TESTED, NEWEST = Path(".venv/bin/python"), Path(".venv-canary/bin/python")
REPORT, RESULTS = Path("build/canary.md"), Path("build/canary.xml")
#: Tests that depend on SGLang: the checks of hooks, and processors on a real engine.
TESTS = ("tests/server", "tests/engine")
#: The operator's switch for an untested version.
ALLOWED = {"SGLANG_LP_ALLOW_UNTESTED": "1"}


def main() -> int:
    """Compare, run the tests and write the table; return an exit code."""
    tested, newest = _hooked(TESTED), _hooked(NEWEST)
    REPORT.parent.mkdir(exist_ok=True)
    RESULTS.unlink(missing_ok=True)
    done = subprocess.run(
        [NEWEST, "-m", "pytest", "-q", f"--junit-xml={RESULTS}", *TESTS],
        env={**os.environ, **ALLOWED},
        check=False,
    )
    failed = failures(done.returncode, RESULTS.read_text() if RESULTS.exists() else None)
    rows = moved(tested, newest)
    lines = [
        f"SGLang {newest['version']}, tried; {tested['version']} is the newest that is supported.",
        "",
        *table(
            ("what", "state"),
            [
                *((f"`{what}`", state) for what, state in rows),
                *((f"`{name}`", "fails") for name in failed),
            ]
            or [("everything", "as it was")],
        ),
    ]
    REPORT.write_text("\n".join(lines) + "\n")
    print(REPORT.read_text())
    return 1 if failed or any(state == "gone" for _, state in rows) else 0


def _hooked(python: Path) -> Any:
    done = subprocess.run(
        [python, "-m", "scripts.hooked"],
        env={**os.environ, **ALLOWED},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{python} -m scripts.hooked failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def moved(tested: Any, newest: Any) -> list[tuple[str, str]]:
    """Return the functions, algorithms and processors that changed, and how.

    Args:
        tested: Output of ``scripts.hooked`` for the newest supported version.
        newest: Output of ``scripts.hooked`` for the newest version on the registry.
    """
    rows: list[tuple[str, str]] = []
    targets = {**tested["targets"], **newest["targets"]}
    for target in targets:
        before, after = (side["targets"].get(target) for side in (tested, newest))
        if after is None:
            state = "gone"
        elif before is None:
            state = "new"
        elif before["signature"] != after["signature"]:
            state = f"signature, now `{after['signature']}`"
        elif before["source"] != after["source"]:
            state = "source"
        else:
            continue
        rows.append((target, state.replace("|", "\\|")))
    for kind in ("algorithms", "processors"):
        rows += [(name, f"new in SGLang's {kind}") for name in _not_in(newest, tested, kind)]
        rows += [(name, f"gone from SGLang's {kind}") for name in _not_in(tested, newest, kind)]
    return rows


def _not_in(one: Any, other: Any, kind: str) -> list[str]:
    return sorted({*one[kind]} - {*other[kind]})


def failures(code: int, results: str | None) -> list[str]:
    """Return the names of the tests that did not pass, and pytest's own if it did not finish.

    Args:
        code: How pytest ended.
        results: What it wrote as JUnit's XML, if it came to that.
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
