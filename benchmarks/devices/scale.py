"""Time that the toolkit adds to a step of a large deployment, from measured pieces.

The time of a node is that of ``benchmarks/results/at-work.json``, the time of an idle step that of
``benchmarks/results/sleep.json``, and the time of a forward what SGLang's authors published
(``benchmarks/results/scale.json``). ``python -m benchmarks.devices.gpu`` measures the same on a
GPU, and prints it line by line.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.cost import sleep
from benchmarks.cost.cases import Case, idle, median
from benchmarks.drafts import at_work
from benchmarks.drafts.verify_step import NODES, VerifyStep
from benchmarks.pages import Part
from benchmarks.tables import table

__all__ = ["PART", "cases", "line", "lines", "measure"]

_IDLE = "thinking budget, idle"
_HISTORY = 1024


def lines(
    results: Mapping[str, Any], worked: Mapping[str, Any], slept: Mapping[str, Any]
) -> list[tuple[str, float]]:
    """Return for each processor the host's milliseconds of a verify step of one rank.

    Args:
        results: The rank's rows and nodes.
        worked: Results of :mod:`benchmarks.drafts.at_work`, of as many rows.
        slept: Results of :mod:`benchmarks.cost.sleep`.
    """
    asleep = next(
        case["cold_us"] / 1000
        for case in slept["cases"]
        if (case["rows"], case["history"], case["drafts"]) == (results["rows"], _HISTORY, True)
    )
    nodes = results["nodes"] / NODES
    return [(_IDLE, asleep), *((case["name"], nodes * case["ms"]) for case in worked["processors"])]


def line(name: str, host_ms: float, done_ms: float | None = None) -> str:
    """Return the line of a processor: the host's time, and the time until the device is done."""
    done = "" if done_ms is None else f", until the device is done {done_ms:.2f} ms"
    return f"{name}: host {host_ms:.2f} ms a step{done}"


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    steps = results["steps"]
    head = [
        f"{results['rows']} rows, {results['nodes'] - 1} drafts each",
        "host, ms a step",
        *(f"added to a step of {step['step_ms']} ms" for step in steps),
    ]
    worked = at_work.PART.stored()
    rows = []
    for name, host in lines(results, worked, sleep.PART.stored()):
        added = [max(0.0, host - step["step_ms"]) for step in steps]
        cells = ["nothing" if not one else f"{one:.1f} ms" for one in added]
        rows.append([name, f"{host:.3g}", *cells])
    on = f"Host: one core of this CPU: {worked['machine']['cpu']}."
    return "\n".join([on, "", *table(head, rows)])


def measure(case: Case, device: Any, results: Mapping[str, Any]) -> tuple[float, float]:
    """Return the milliseconds of a verify step: until the host is free, and the device done."""
    step = VerifyStep(case, device.kind, results["nodes"])
    step.run()
    host, done = [], []
    for _ in range(20):
        step.commit()
        device.wait()
        began = time.perf_counter()
        step.run()
        host.append(time.perf_counter() - began)
        device.wait()
        done.append(time.perf_counter() - began)
    return median(host) * 1000, median(done) * 1000


def cases(rows: int) -> Iterator[tuple[str, Case]]:
    """Yield what a GPU is asked about, as the page names it."""
    yield _IDLE, idle(rows, _HISTORY)
    yield from at_work.cases(rows)


PART = Part("scale", "scale.md", page_block)
