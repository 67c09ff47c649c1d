"""Time that each busy processor adds to a verify step: ``python -m benchmarks.drafts.at_work``.

A batch has 256 rows with chains of five nodes, and every row acts. As in
:mod:`benchmarks.drafts.measure`, operations on the logits and decisions of the device are left out:
the figure is the host's time, as processor time of the thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.cost.cases import Case, disallowed, forced, median, ngram, others, per_step
from benchmarks.drafts.verify_step import NODES, VerifyStep
from benchmarks.machine import age, machine
from benchmarks.pages import Part
from benchmarks.tables import table, verdict
from sglang_lp._engine.apply.plan import Plan
from sglang_lp.testing import decided_as_on_a_gpu

__all__ = ["PART", "cases", "main"]

ROWS, HISTORY = 256, 1024
ROUNDS, STEPS = 5, 10
#: Milliseconds of a step; of the n-gram rule, which has two figures: in a text that repeats.
MOST, MOST_NGRAM = 8.0, 12.0


def cases(rows: int) -> Iterator[tuple[str, Case]]:
    """Yield every processor at work, with the name that the page has for it."""
    yield "thinking budget, spent", forced(rows, HISTORY)
    yield "`DisallowedTokensLogitsProcessor`", disallowed(rows, same=False)
    for case in others(rows, HISTORY):
        yield f"`{case.processor}`", case
    for text in ("prose", "table", "loop"):
        yield f"n-gram rule, {text}", ngram(rows, HISTORY, 3, 1 << 15, text)


def _limit(name: str) -> float:
    return MOST_NGRAM if name.startswith("n-gram") else MOST


def measure() -> list[dict[str, Any]]:
    """Return the milliseconds of a step for each processor: the median of the runs."""
    found = []
    with (
        decided_as_on_a_gpu(),
        patch.object(Plan, "apply", lambda *_given: None),
        patch.object(Plan, "decide", lambda *_given: None),
    ):
        for name, case in cases(ROWS):
            step = VerifyStep(case)
            step.run()  # the first run reads the prompt
            age()
            run = partial(per_step, step.run, STEPS, step.commit, time.thread_time)
            milli = median([run() for _ in range(ROUNDS)]) * 1e3
            found.append({"name": name, "ms": round(milli, 2)})
    return found


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}, one thread.",
        f"The median of {ROUNDS} runs; load average {on['load']}.",
        "",
    ]
    rows = []
    for one in results["processors"]:
        limit, node = _limit(one["name"]), one["ms"] * 1e3 / (ROWS * NODES)
        met = verdict(met=one["ms"] <= limit)
        rows.append((one["name"], f"{one['ms']:.1f} ms", f"{node:.1f} µs", f"{limit:g} ms", met))
    head = (f"all {ROWS} rows at work, {NODES} nodes each", "a step", "a node", "at most", "met")
    return "\n".join([*lines, *table(head, rows)])


PART = Part("at-work", "performance-drafts.md", page_block)


def main() -> int:
    """Measure, store the results, renew the page and print its table."""
    torch.set_num_threads(1)
    found = measure()
    results = {"machine": machine(), "processors": found}
    PART.store(results)
    print(page_block(results))
    return int(any(one["ms"] > _limit(one["name"]) for one in found))


if __name__ == "__main__":
    sys.exit(main())
