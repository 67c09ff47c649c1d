"""The cost of a step in which all rows sleep: ``python -m benchmarks.cost.sleep``.

On a server other work runs between two steps, and evicts their data from the processor's caches.
So each batch is measured twice: in consecutive steps, and with a write to a buffer larger than any
cache between two steps. Times are processor times of the thread, the clock's own included.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from benchmarks.cost.cases import VOCAB, Batch, idle, interleave
from benchmarks.drafts.verify_step import NODES, VerifyStep
from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps

__all__ = ["PART", "main"]

ROUNDS = 9
STEPS = 20
#: Rows, and microseconds that a step may take.
LIMITS = {256: 10.0, 1024: 15.0}
HISTORIES = (1024, 16_384)
#: Bytes, more than any cache.
BUFFER = 64 << 20


def _run(step: Callable[[], object], between: Callable[[], object]) -> float:
    """Return the seconds of a run's median step."""
    times = []
    for _ in range(STEPS):
        between()
        started = time.thread_time()
        step()
        times.append(time.thread_time() - started)
    return statistics.median(times)


def _sampling(rows: int, history: int) -> tuple[Callable[[], object], Callable[[], object]]:
    batch = Batch(idle(rows, history))
    logits = torch.empty(rows, VOCAB)
    return partial(Steps(PendingResults()).run, logits, batch.info), batch.decode


def _verifying(rows: int, history: int) -> tuple[Callable[[], object], Callable[[], object]]:
    step = VerifyStep(idle(rows, history))
    return step.run, step.commit


def measure(rows: int, history: int, *, drafts: bool) -> dict[str, Any]:
    """Return microseconds of a step: the median step of the quietest run."""
    step, generate = (_verifying if drafts else _sampling)(rows, history)
    buffer = torch.zeros(BUFFER, dtype=torch.uint8)

    def other_work() -> None:
        generate()
        buffer.add_(1)

    for _ in range(3):  # the first reads the prompts, and the second finds that all sleep
        step()
        generate()
    sides = {"warm": partial(_run, step, generate), "cold": partial(_run, step, other_work)}
    times = interleave(sides, ROUNDS)
    us = {f"{side}_us": round(min(runs) * 1e6, 1) for side, runs in times.items()}
    return {"rows": rows, "history": history, "drafts": drafts, **us}


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}.",
        f"The median step of the quietest of {results['rounds']} runs; load average {on['load']}.",
        "",
    ]
    head = (
        *("rows", "history", "drafts", "no work between steps", "other work between steps"),
        "at most",
    )
    rows = (
        (
            f"{case['rows']:,}",
            f"{case['history']:,}",
            str(NODES - 1) if case["drafts"] else "none",
            *(f"{us:.1f} µs" for us in (case["warm_us"], case["cold_us"])),
            f"{LIMITS[case['rows']]:g} µs",
        )
        for case in results["cases"]
    )
    return "\n".join([*lines, *table(head, rows)])


PART = Part("sleep", "performance.md", page_block)


def main() -> int:
    """Measure, store the results, renew the page and print its table."""
    torch.set_num_threads(1)
    cases = [
        measure(rows, history, drafts=drafts)
        for drafts in (False, True)
        for rows in LIMITS
        for history in HISTORIES
    ]
    results = {"machine": machine(), "rounds": ROUNDS, "cases": cases}
    PART.store(results)
    print(page_block(results))
    over = [one for one in cases if max(one["warm_us"], one["cold_us"]) > LIMITS[one["rows"]]]
    print(f"over the limit: {len(over)} of {len(cases)}")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
