"""The cost of a budget that watches for loops: ``python -m benchmarks.cost.watch``.

All blocks are open and far from their budget. A row wakes after 512 tokens, reads them, and looks
for a loop if it is to. A run has so many steps that each row wakes once, and its figure is the mean
step, in time of the thread's processor, without a first one that comes back from another batch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.cost.cases import VOCAB, Batch, Case, idle, interleave, median, per_step
from benchmarks.machine import age, machine
from benchmarks.pages import Part
from benchmarks.tables import table
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps

__all__ = ["PART", "main"]

ROWS, HISTORY = 256, 8192
ROUNDS, STEPS = 7, 512
#: Most tokens of a pattern; none for a budget that does not watch.
SIZES = (0, 128, 1024)
#: Of the time without watching.
MOST = 2.0


def _case(size: int) -> Case:
    given = {"thinking_budget": 1_000_000} | ({"max_pattern_size": size} if size else {})
    return replace(idle(ROWS, HISTORY), params=lambda _row: given)


def measure() -> list[dict[str, Any]]:
    """Return the microseconds of a step for each size: the median of the runs."""
    sides = {str(size): partial(_run, *_batch(size)) for size in SIZES}
    age()
    times = interleave(sides, ROUNDS)
    return [{"size": int(size), "us": round(median(runs) * 1e6, 1)} for size, runs in times.items()]


def _batch(size: int) -> tuple[Callable[[], object], Callable[[], None]]:
    batch = Batch(_case(size))
    step = partial(Steps(PendingResults()).run, torch.empty(ROWS, VOCAB), batch.info)
    step()  # reads the prompts
    return step, batch.decode


def _run(step: Callable[[], object], decode: Callable[[], None]) -> float:
    decode()
    step()
    return per_step(step, STEPS, decode, time.thread_time)


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on, cases = results["machine"], results["cases"]
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}; {ROWS} rows.",
        f"The mean step of the median of {ROUNDS} runs; load average {on['load']}.",
        "",
    ]
    rows = (
        (
            f"4 to {case['size']:,} tokens" if case["size"] else "no loops: idle",
            f"{case['us']:.1f} µs",
            f"{case['us'] / cases[0]['us']:.2f}",
            f"{MOST:g}",
        )
        for case in cases
    )
    head = ("watches for patterns of", "a step", "of the idle one", "at most")
    return "\n".join([*lines, *table(head, rows)])


PART = Part("watch", "performance.md", page_block)


def main() -> int:
    """Measure, store the results, renew the page and print its table."""
    torch.set_num_threads(1)
    cases = measure()
    results = {"machine": machine(), "cases": cases}
    PART.store(results)
    print(page_block(results))
    first, *others = (case["us"] for case in cases)
    return int(any(one > MOST * first for one in others))


if __name__ == "__main__":
    sys.exit(main())
