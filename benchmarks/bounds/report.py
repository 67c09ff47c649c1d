"""What the stored results of :mod:`benchmarks.bounds` say, in tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.pages import Part

__all__ = ["PART", "missed", "show"]

#: What one HTTP request may cost.
ROW_MS = 1.0
STEP_MS = 25.0
ARRIVAL_MS = 25.0
#: For one text and its copies: each text of a list may have a prompt of its own.
HELD_MIB = 64.0
#: What a neighbour that joins or leaves may cost, above the median step.
NEIGHBOUR_MS = 2.0


def missed(case: Mapping[str, Any]) -> list[str]:
    """Return the limits that a request breaks, each as a few words; none if it is refused."""
    if "refused" in case:
        return []
    step = min(STEP_MS, ROW_MS * case["rows"])
    over = {
        "HTTP process": case["admitted_ms"] > ARRIVAL_MS,
        "scheduler": case["received_ms"] > ARRIVAL_MS,
        "first step": case["first_ms"] > step,
        "each step": case["most_ms"] > step,
        "neighbour": max(case["joined_ms"], case["left_ms"]) > case["each_ms"] + NEIGHBOUR_MS,
        "memory": case["held_mib"] / case["texts"] > HELD_MIB,
    }
    return [what for what, is_over in over.items() if is_over]


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    fill = results["fill_ms"]
    machine = results["machine"]
    head = [
        "request", "rows", "prompt", "HTTP process", "scheduler", "first step", "each step",
        "dearest step", "dearest, per row", "neighbour joins, leaves", "memory", "over its limit",
    ]  # fmt: skip
    before = {case["key"]: case for case in results.get("before", {}).get("cases", [])}
    measured_on = (
        f"Measured on: {machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, "
        f"torch {machine['torch']} (1 thread). One `fill_` of a row takes {fill * 1000:.3g} µs."
    )
    lines = [
        measured_on,
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    lines += [f"| {' | '.join(_cells(case, before, fill))} |" for case in results["cases"]]
    lines += [
        "",
        "What work on so many rows takes at least, on the same machine:",
        "",
        *(f"- {what}: {_time(took)}" for what, took in results.get("floors", {}).items()),
        "",
        "The dearest requests that a search over the schemas found, one row each:",
        "",
        "| processor | tried | dearest step | of a row's `fill_` | request |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{found['processor']}` | {found['tried']} | {_time(found['most_ms'])} "
        f"| {found['most_ms'] / fill:.3g} | {found['request']} |"
        for found in results["search"]
    ]
    return "\n".join(lines)


PART = Part("bounds", "performance.md", page_block)


def _cells(
    case: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]], fill: float
) -> list[str]:
    """Return one row of the table."""
    cells = [f"`{case['key']}`", str(case["rows"]), f"{case['prompt']:,}"]
    if "refused" in case:
        return [*cells, f"refused: {case['refused']}", *[""] * 8]
    per_row = max(case["most_ms"], case["first_ms"]) / case["rows"]
    return [
        *cells,
        _time(case["admitted_ms"]),
        _time(case["received_ms"]),
        *(_beside(case, before, name) for name in ("first_ms", "each_ms", "most_ms")),
        f"{per_row / fill:.3g} `fill_`",
        f"{_time(case['joined_ms'])}, {_time(case['left_ms'])}",
        f"{case['held_mib']:g} MiB",
        ", ".join(missed(case)) or "-",
    ]


def show(results: Mapping[str, Any]) -> int:
    """Print what is over a limit; return 1 if anything is, else 0."""
    lines = [*_over(results)]
    print("\n".join(lines) or "no request is over a limit")
    return 1 if lines else 0


def _over(results: Mapping[str, Any]) -> Iterator[str]:
    for case in results["cases"]:
        if what := missed(case):
            yield f"OVER {case['key']}: {', '.join(what)}"
    for found in results["search"]:
        if found["most_ms"] > ROW_MS:
            yield f"OVER search, {found['processor']}: {found['most_ms']} ms: {found['request']}"


def _beside(case: Mapping[str, Any], before: Mapping[str, Any], name: str) -> str:
    old = before.get(case["key"])
    return _time(case[name]) + (f" (was {_time(old[name])})" if old else "")


def _time(milli: float) -> str:
    if milli < 1:
        return f"{milli * 1000:.3g} µs"
    return f"{milli:.3g} ms" if milli < 1000 else f"{milli / 1000:.3g} s"
