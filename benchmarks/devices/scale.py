"""What the toolkit adds to a step of a large deployment, from measured pieces.

The time of a node is that of ``benchmarks/results/drafts.json``, the time of a step what SGLang's
authors published (``benchmarks/results/scale.json``). ``python -m benchmarks.devices.gpu --scale``
measures the same on a GPU, and prints it line by line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.cost.cases import Case, forced, idle, median, ngram
from benchmarks.drafts import report
from benchmarks.drafts.verify_step import VerifyStep
from benchmarks.pages import Part

__all__ = ["PART", "line", "lines", "measure", "rules"]

_HISTORY = 1024


def lines(results: Mapping[str, Any], drafts: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return for each rule the host's milliseconds of a verify step of one rank."""
    nodes = results["rows"] * results["nodes"]
    return [
        (rule["rule"], nodes * rule["node_us"] / 1000)
        for rule in drafts["rules"]
        if rule["history"] == _HISTORY
    ]


def line(rule: str, host_ms: float, done_ms: float | None = None) -> str:
    """Return what is printed of a rule: the host's time, and until the device is done."""
    done = "" if done_ms is None else f", until the device is done {done_ms:.2f} ms"
    return f"{rule}: host {host_ms:.2f} ms a step{done}"


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    steps = results["steps"]
    heads = [f"added to a step of {step['step_ms']} ms" for step in steps]
    table = [
        f"| {results['rows']} rows, {results['nodes'] - 1} drafts each | host, ms a step | "
        + " | ".join(heads)
        + " |",
        "|---" * (2 + len(steps)) + "|",
    ]
    for rule, host in lines(results, report.PART.stored()):
        added = [max(0.0, host - step["step_ms"]) for step in steps]
        cells = ["nothing" if not one else f"{one:.1f} ms" for one in added]
        table.append(f"| {rule} | {host:.1f} | {' | '.join(cells)} |")
    return "\n".join(table)


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


def rules(rows: int) -> dict[str, Case]:
    """Return the rules that a GPU is asked about, as the page names them."""
    return {
        "idle budget": idle(rows, _HISTORY),
        "spent budget": forced(rows, _HISTORY),
        "n-gram rule": ngram(rows, _HISTORY, 3, 1 << 15, "loop"),
    }


PART = Part("scale", "scale.md", page_block)
