"""The cost of a catalogue: its index, and what its rows add to a step, on the host and a CPU.

``make bench PART=catalogue`` prints four tables, stores them in
``benchmarks/results/catalogue.json`` and puts them into ``docs/catalogues.md``. Times are CPU times
of one thread: of one build, and medians of rounds in which the cases take turns.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.catalogue import beams
from benchmarks.catalogue.beams import FREE, STATIC
from benchmarks.catalogue.items import LEVELS, RULES, codes_of, params_of, sets_of
from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import duration, table
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.file import load, save
from sglang_lp.testing import Batch, Played
from support.catalogues import knowing

ROUNDS = 3
SIZES = (1_000_000, 10_000_000, 30_000_000)
#: Of the tables of steps.
ITEMS = 1_000_000
VOCABULARIES = (32_768, 152_000)
ROWS = (1, 64, 512)
#: The column of rows that a trie of dictionaries walks and masks, without rules.
DICTS = "a trie of dictionaries"


def measure_index(items: int) -> dict[str, Any]:
    """Return time and memory of building, holding and opening an index."""
    codes, sets = codes_of(items), sets_of(items)
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


def measure_steps(processor: Any, vocabulary: int) -> Iterator[dict[str, Any]]:
    """Yield the time of a step for each number of rows, rule and depth."""
    root = _dictionaries()
    for rows in ROWS:
        logits = torch.zeros(rows, vocabulary)
        fills: list[float] = []
        times: dict[tuple[str, int], list[float]] = {
            (rule, depth): [] for rule in (*RULES, DICTS) for depth in range(LEVELS)
        }
        for at in range(ROUNDS):
            began = time.thread_time()
            logits.fill_(-1.0)
            fills.append(time.thread_time() - began)
            for rule in RULES:
                for depth, seconds in steps(processor, logits, rule, at):
                    times[rule, depth].append(seconds)
            for depth, seconds in _dictionary_steps(root, logits, at):
                times[DICTS, depth].append(seconds)
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
        Played(processor, params_of(rule, row), [5], vocab_size=logits.shape[1])
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


def _dictionaries() -> dict[int, Any]:
    """Return the items as nested dictionaries, the usual trie of Python."""
    root: dict[int, Any] = {}
    for first, second, third in codes_of(ITEMS).tolist():
        root.setdefault(first, {}).setdefault(second, {})[third] = None
    return root


def _dictionary_steps(
    root: dict[int, Any], logits: torch.Tensor, at: int
) -> Iterator[tuple[int, float]]:
    """Yield depth and seconds of steps that mask each row by the dictionary of its node."""
    random = np.random.default_rng(at)
    nodes = [root] * len(logits)
    for depth in range(LEVELS):
        logits.zero_()
        began = time.thread_time()
        for node, row in zip(nodes, logits, strict=True):
            allowed = torch.tensor([*node])
            kept = row[allowed]
            row.fill_(-torch.inf)
            row[allowed] = kept
        yield depth, time.thread_time() - began
        nodes = [node[[*node][random.integers(len(node))]] for node in nodes]


class Goal(NamedTuple):
    """A goal, and the shares of it that were measured: at most 1 meets it.

    Attributes:
        text: The goal.
        shares: Of each case, the time that it took and the longest time that meets the goal.
    """

    text: str
    shares: Sequence[float]


def goals(results: Mapping[str, Any]) -> list[Goal]:
    """Return the goals and the measured shares of them."""
    rows = {
        (one["vocabulary"], one["rows"], one["rule"], one["depth"]): one for one in results["steps"]
    }
    searches = {
        (one["vocabulary"], one["depth"], one["rule"]): one["us"] for one in results["beams"]
    }
    free = {key[:2]: us for key, us in searches.items() if key[2] == FREE}

    def beside(rule: str, most: float) -> list[float]:
        return [
            one["us"] / rows[vocabulary, count, "none", depth]["us"] / most
            for (vocabulary, count, own, depth), one in rows.items()
            if own == rule and count > 1
        ]

    return [
        Goal(
            "512 beams: half of SGLang without a catalogue",
            [us / (free[key[:2]] / 2) for key, us in searches.items() if key[2] in RULES],
        ),
        Goal(
            "64 rows and more: 1.3 of `fill_` and 10 µs a row",
            [
                one["us"] / (1.3 * one["fill_us"] + 10 * count)
                for (_, count, rule, _), one in rows.items()
                if rule == "none" and count > 1
            ],
        ),
        Goal("64 rows and more, with a set: 1.1 of those without a rule", beside("a set", 1.1)),
        Goal(
            "64 rows and more, 1,000 items left out: 2 of those without a rule",
            beside("1,000 left out", 2),
        ),
    ]


def _extrapolated(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return a sentence about an index of 100 million items, from those of two sizes."""
    share = (100_000_000 - other["items"]) / (other["items"] - one["items"])
    seconds, gib = (
        other[figure] + share * (other[figure] - one[figure]) for figure in ("build_s", "peak_gib")
    )
    return (
        "Extrapolated from the last two sizes, building an index of 100 million items takes about "
        f"{seconds:.0f} s and {gib:.1f} GiB, the table of items included."
    )


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
    measured = {one["rule"] for one in results["beams"]}
    kinds = [kind for kind in (FREE, STATIC, *RULES) if kind in measured]
    cells: dict[tuple[int, int], dict[str, Any]] = {}
    for one in results["beams"]:
        cells.setdefault((one["vocabulary"], one["depth"]), {})[one["rule"]] = one["us"]
    searches = (
        (
            f"{vocabulary:,}",
            ("2nd", "3rd")[depth - 1],
            *(duration(found[kind]) for kind in kinds),
        )
        for (vocabulary, depth), found in sorted(cells.items())
    )
    beam_columns = ("vocabulary", "token", *kinds)
    met = (
        (
            goal.text,
            f"{min(goal.shares):.2f} to {max(goal.shares):.2f}",
            f"{sum(share <= 1 for share in goal.shares)} of {len(goal.shares)}",
        )
        for goal in goals(results)
    )
    on = results["machine"]
    return "\n".join(
        [
            f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}, one thread.",
            "",
            *table(head, sizes),
            "",
            _extrapolated(*results["index"][-2:]),
            "",
            *table(columns, lines),
            "",
            *table(beam_columns, searches),
            "",
            *table(("goal: at most", "measured, as a part of the goal", "met"), met),
        ]
    )


PART = Part("catalogue", "catalogues.md", page_block)


def main() -> int:
    """Measure, print and store."""
    torch.set_num_threads(1)
    sizes = [measure_index(items) for items in SIZES]
    print(*sizes, sep="\n")
    processor = knowing(items=build(codes_of(ITEMS), sets=sets_of(ITEMS)))
    measured = [one for size in VOCABULARIES for one in measure_steps(processor, size)]
    searches = [*beams.measure(ITEMS, processor, VOCABULARIES, RULES)]
    print(*measured, *searches, sep="\n")
    PART.store({"machine": machine(), "index": sizes, "steps": measured, "beams": searches})
    return 0


if __name__ == "__main__":
    sys.exit(main())
