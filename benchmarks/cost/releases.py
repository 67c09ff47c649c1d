"""Whole benchmarks in this version and in an earlier one.

``python -m benchmarks.cost.releases [REVISION]``.

The last commit and the earlier version take turns, each in a tree of its own with its own
benchmarks. A time depends on the machine; the ratio of two times depends on it less.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import orjson

from benchmarks.cost.turns import BEFORE, unpack
from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table

__all__ = ["PART"]

TURNS = 2
_SHARES = "median", "least", "most"


class _Benchmark(NamedTuple):
    """A benchmark of both versions.

    Attributes:
        title: Of its table.
        command: Its module and arguments.
        file: Name of its stored results; ``None`` if it prints them.
        names: Of the times in its results.
    """

    title: str
    command: tuple[str, ...]
    file: str | None
    names: frozenset[str]


_BENCHMARKS = (
    _Benchmark(
        "[steps next to SGLang's own classes](#on-a-cpu)",
        ("benchmarks.cost.measure", "--only=-"),  # every key has a dash
        None,
        frozenset({"ours_us"}),
    ),
    _Benchmark(
        "[asleep](#asleep)", ("benchmarks.cost.sleep",), "sleep", frozenset({"warm_us", "cold_us"})
    ),
    _Benchmark(
        "[budgets that watch for loops](#asleep)",
        ("benchmarks.cost.watch",),
        "watch",
        frozenset({"us"}),
    ),
    _Benchmark(
        "[for trainers](#what-trainers-ask-for)",
        ("benchmarks.cost.rollouts",),
        "rollouts",
        frozenset({"plain_us", "masked_us", "raw_us", "us"}),
    ),
    _Benchmark(
        "[texts](#texts)",
        ("benchmarks.text",),
        "text",
        frozenset({"vocabulary_ms", "letters_ms", "compile_ms", "step_us", "step_p99_us"}),
    ),
    _Benchmark(
        "[classes of other frameworks](bring-your-own.md#what-it-costs)",
        ("benchmarks.adapters.measure",),
        "adapters",
        frozenset({"adapted", "native"}),
    ),
)


def _times(
    found: Any, names: frozenset[str], at: tuple[Any, ...] = ()
) -> Iterator[tuple[Any, float]]:
    """Yield the times in results, each with a key that is the same in both versions."""
    if isinstance(found, list):
        for one in found:
            yield from _times(one, names, at)
    elif isinstance(found, dict):
        label = (*at, *(one for one in found.values() if isinstance(one, str | int)))
        for name, value in found.items():
            if name in names:
                yield (*label, name), value
            else:
                yield from _times(value, names, (*label, name))


def _run(tree: Path, benchmark: _Benchmark) -> dict[Any, float]:
    """Return the times of a version. A benchmark that misses a limit has another exit status."""
    stored = tree / "benchmarks/results" / f"{benchmark.file}.json"
    stored.unlink(missing_ok=True)  # the tree's own would pass for those of a benchmark that failed
    done = subprocess.run(
        [sys.executable, "-m", *benchmark.command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        check=False,
    )
    printed = done.stdout if benchmark.file is None else stored.read_bytes()
    return dict(_times(orjson.loads(printed), benchmark.names))


def _compare(before: Path, now: Path, benchmark: _Benchmark) -> dict[str, Any]:
    """Return the share of the earlier version's time that this version takes."""
    turns = [(_run(before, benchmark), _run(now, benchmark)) for _ in range(TURNS)]
    keys = turns[0][0].keys() & turns[0][1].keys()
    means = [[fmean(turn[side][key] for turn in turns) for side in (0, 1)] for key in keys]
    shares = sorted(now / before for before, now in means)
    return {
        "title": benchmark.title,
        "figures": len(shares),
        "median": round(median(shares), 2),
        "least": round(shares[0], 2),
        "most": round(shares[-1], 2),
    }


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}.",
        f"The means of {TURNS} turns; load average {on['load']}.",
        "",
    ]
    rows = (
        (one["title"], str(one["figures"]), *(f"{one[key]:.2f}" for key in _SHARES))
        for one in results["tables"]
    )
    head = "time of this version by that of 0.3.0", "figures", *_SHARES
    return "\n".join([*lines, *table(head, rows)])


PART = Part("releases", "performance.md", page_block)


def main(revision: str = BEFORE) -> int:
    """Measure, store the results, renew the page and print its table."""
    on = machine()
    with TemporaryDirectory() as directory:
        before, now = Path(directory, "before"), Path(directory, "now")
        unpack(revision, before)
        unpack("HEAD", now)
        tables = [_compare(before, now, one) for one in _BENCHMARKS]
    PART.store({"machine": on, "revision": revision, "tables": tables})
    print(page_block(PART.stored()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
