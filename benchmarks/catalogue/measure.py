"""The cost of a catalogue: its index, and what its rows add to a step, on the host and a CPU.

``make bench PART=catalogue`` prints two tables, stores them in
``benchmarks/results/catalogue.json`` and puts them into ``docs/catalogues.md``. Times are CPU times
of one thread: of one build, and medians of rounds in which the cases take turns. Items are three
tokens of 8,192 each, drawn as clustering draws them: a few codes are much more frequent.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import duration, table
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.file import load, save
from sglang_lp.testing import Batch, Played
from support.catalogues import knowing

CODES, LEVELS = 8192, 3
ROUNDS = 3
SIZES = (1_000_000, 10_000_000)
#: Of the table of steps.
ITEMS = 1_000_000
VOCABULARIES = (32_768, 152_000)
ROWS = (1, 64, 256)
#: Rules of a request, each with another list.
RULES = ("none", "a set", "1,000 left out")


def codes_of(items: int) -> Any:
    """Return the tokens of some items."""
    random = np.random.default_rng(0)
    drawn = (random.random((items, LEVELS)) ** 2 * CODES).astype(np.int32)
    return drawn + np.arange(LEVELS, dtype=np.int32) * CODES


def measure_index(items: int) -> dict[str, Any]:
    """Return time and memory of building, holding and opening an index."""
    codes = codes_of(items)
    sets = {"half": np.random.default_rng(1).random(items) < 0.5}
    began = time.process_time()
    index = build(codes, sets=sets)
    built = time.process_time() - began
    arrays = index.arrays
    on_device = sum(one.nbytes for one in (arrays.first, arrays.token, arrays.low, arrays.high))
    with tempfile.TemporaryDirectory() as folder:
        size = save(index, Path(folder) / "items.cat")
        began = time.process_time()
        load(Path(folder) / "items.cat", whole=True)
        opened = time.process_time() - began
    return {
        "items": index.shape.items,
        "build_s": round(built, 2),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "bytes_an_item": round(on_device / index.shape.items, 1),
        "file_mb": round(size / 1e6, 1),
        "open_s": round(opened, 3),
    }


def _params(rule: str, row: int) -> dict[str, Any]:
    given: dict[str, Any] = {"catalogue": "items"}
    if rule == "a set":
        given["subset"] = ["half"]
    elif rule == "1,000 left out":
        given["exclude"] = np.random.default_rng(row).integers(0, ITEMS, 1000).tolist()
    return given


def measure_steps(processor: Any, vocabulary: int) -> Iterator[dict[str, Any]]:
    """Yield the time of a step for each number of rows, rule and depth."""
    for rows in ROWS:
        logits = torch.zeros(rows, vocabulary)
        fills: list[float] = []
        times: dict[tuple[str, int], list[float]] = {
            (rule, depth): [] for rule in RULES for depth in range(LEVELS)
        }
        for at in range(ROUNDS):
            began = time.thread_time()
            logits.fill_(-1.0)
            fills.append(time.thread_time() - began)
            for rule in RULES:
                for depth, seconds in steps(processor, logits, rule, at):
                    times[rule, depth].append(seconds)
        for (rule, depth), found in times.items():
            yield {
                "vocabulary": vocabulary,
                "rows": rows,
                "rule": rule,
                "depth": depth,
                "us": round(statistics.median(found) * 1e6, 1),
                "fill_us": round(statistics.median(fills) * 1e6, 1),
            }


def steps(
    processor: Any,
    logits: torch.Tensor,
    rule: str,
    at: int,
    clock: Callable[[], float] = time.thread_time,
) -> Iterator[tuple[int, float]]:
    """Yield the place in an item and the seconds of each step that writes its tokens.

    Args:
        processor: A class that knows the catalogue ``items``.
        logits: Shape ``(rows, vocab)``; changed in place.
        rule: One of ``RULES``, of every row.
        at: Number of the round, which decides the items.
        clock: Tells the time.
    """
    batch, random = Batch(), np.random.default_rng(at)
    played = [
        Played(processor, _params(rule, row), [5], vocab_size=logits.shape[1])
        for row in range(len(logits))
    ]
    params = [one.custom_params for one in played]
    for depth in range(LEVELS):
        logits.zero_()
        rows = rows_of(params)
        began = clock()
        batch.step(logits, rows, params)
        yield depth, clock() - began
        for one, row in zip(played, logits, strict=True):
            (allowed,) = row.isfinite().nonzero(as_tuple=True)
            one.source.append(int(allowed[random.integers(len(allowed))]))


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    sizes = (
        (
            f"{one['items']:,}",
            f"{one['build_s']} s",
            f"{one['peak_gib']} GiB",
            f"{one['bytes_an_item']}",
            f"{one['file_mb']} MB",
            duration(one["open_s"] * 1e6),
        )
        for one in results["index"]
    )
    head = ("items", "build", "most memory", "bytes an item", "file", "open")
    by_key: dict[tuple[int, int, str], dict[int, Any]] = {}
    for one in results["steps"]:
        by_key.setdefault((one["vocabulary"], one["rows"], one["rule"]), {})[one["depth"]] = one
    lines = (
        (
            f"{vocabulary:,}",
            str(rows),
            rule,
            duration(found[0]["fill_us"]),
            *(duration(found[depth]["us"]) for depth in range(LEVELS)),
        )
        for (vocabulary, rows, rule), found in by_key.items()
    )
    columns = ("vocabulary", "rows", "rule", "`fill_`", "1st token", "2nd token", "3rd token")
    return "\n".join([*table(head, sizes), "", *table(columns, lines)])


PART = Part("catalogue", "catalogues.md", page_block)


def main() -> int:
    """Measure, print and store."""
    torch.set_num_threads(1)
    sizes = [measure_index(items) for items in SIZES]
    print(*sizes, sep="\n")
    sets = {"half": np.random.default_rng(1).random(ITEMS) < 0.5}
    processor = knowing(items=build(codes_of(ITEMS), sets=sets))
    measured = [one for size in VOCABULARIES for one in measure_steps(processor, size)]
    print(*measured, sep="\n")
    PART.store({"machine": machine(), "index": sizes, "steps": measured})
    return 0


if __name__ == "__main__":
    sys.exit(main())
