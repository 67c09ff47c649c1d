"""Tables of the stored results of :mod:`benchmarks.bounds`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.pages import Part
from benchmarks.tables import duration, table

__all__ = ["PART", "missed", "show"]

#: What one HTTP request may cost, in multiples of one ``fill_`` of a row, so that a limit means the
#: same on every machine.
ROW = 100
STEP = ARRIVAL = 2_500
#: What a neighbour that joins or leaves may cost, above the median step.
NEIGHBOUR = 200
#: For one text and its copies: each text of a list may have a prompt of its own.
HELD_MIB = 64.0


def missed(case: Mapping[str, Any], fill: float) -> list[str]:
    """Return the limits that a request breaks, each as a few words; none if it is refused.

    Args:
        case: The request.
        fill: Milliseconds of one ``fill_`` of a row.
    """
    if "refused" in case:
        return []
    step, arrival = min(STEP, ROW * case["rows"]) * fill, ARRIVAL * fill
    neighbour = case["each_ms"] + NEIGHBOUR * fill
    over = {
        "HTTP process": case["admitted_ms"] > arrival,
        "scheduler": case["received_ms"] > arrival,
        "first step": case["first_ms"] > step,
        "each step": case["most_ms"] > step,
        "neighbour": max(case["joined_ms"], case["left_ms"]) > neighbour,
        "memory": case["held_mib"] / case["texts"] > HELD_MIB,
    }
    return [what for what, is_over in over.items() if is_over]


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    fill = results["fill_ms"]
    machine = results["machine"]
    served = [case for case in results["cases"] if "refused" not in case]
    measured_on = (
        f"Measured on: {machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, "
        f"torch {machine['torch']} (1 thread). One `fill_` of a row takes {fill * 1000:.3g} µs."
    )
    return "\n".join(
        [
            measured_on,
            "",
            "Over a limit:",
            "",
            *(
                f"- `{case['key']}`: {', '.join(what)}"
                for case in served
                if (what := missed(case, fill))
            ),
            "",
            "Refused:",
            "",
            *(
                f"- `{case['key']}`: {case['refused']}"
                for case in results["cases"]
                if "refused" in case
            ),
            "",
            "### Steps",
            "",
            *_folded(
                f"{len(served)} requests",
                table(
                    (
                        *("request", "rows", "first step", "each step", "slowest step"),
                        *("slowest, per row", "neighbour joins, leaves"),
                    ),
                    (_steps(case, fill) for case in served),
                ),
            ),
            "",
            "Lower bounds for work on so many rows, on the same machine:",
            "",
            *(f"- {what}: {duration(1000 * took)}" for what, took in results["floors"].items()),
            "",
            "### Arrival and memory",
            "",
            *_folded(
                f"{len(served)} requests",
                table(
                    ("request", "rows", "prompt", "HTTP process", "scheduler", "memory"),
                    (_arrival(case) for case in served),
                ),
            ),
            "",
            "### Found by the search",
            "",
            "For each processor the most expensive request that the search found.",
            "Its slowest step is given as time and as a multiple of one row's `fill_`.",
            "",
            *_folded(
                f"{len(results['search'])} processors",
                (
                    f"- `{found['processor']}`: {duration(1000 * found['most_ms'])},"
                    f" {found['most_ms'] / fill:.3g} times `fill_`, of {found['tried']} requests:"
                    f" {found['request']}"
                    for found in results["search"]
                ),
            ),
        ]
    )


def _folded(summary: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines that a page shows when its reader asks for them."""
    yield from ("<details>", f"<summary>{summary}</summary>", "", *lines, "", "</details>")


PART = Part("bounds", "bounds.md", page_block)


def _steps(case: Mapping[str, Any], fill: float) -> list[str]:
    """Return the row of a request in the table of steps."""
    per_row = max(case["most_ms"], case["first_ms"]) / case["rows"]
    return [
        f"`{case['key']}`",
        str(case["rows"]),
        *(duration(1000 * case[name]) for name in ("first_ms", "each_ms", "most_ms")),
        f"{per_row / fill:.3g} `fill_`",
        f"{duration(1000 * case['joined_ms'])}, {duration(1000 * case['left_ms'])}",
    ]


def _arrival(case: Mapping[str, Any]) -> list[str]:
    """Return the row of a request in the table of arrivals."""
    return [
        f"`{case['key']}`",
        str(case["rows"]),
        f"{case['prompt']:,}",
        duration(1000 * case["admitted_ms"]),
        duration(1000 * case["received_ms"]),
        f"{case['held_mib']:g} MiB",
    ]


def show(results: Mapping[str, Any]) -> int:
    """Print what is over a limit; return 1 if anything is, else 0."""
    lines = [*_over(results)]
    print("\n".join(lines) or "no request is over a limit")
    return 1 if lines else 0


def _over(results: Mapping[str, Any]) -> Iterator[str]:
    for case in results["cases"]:
        if what := missed(case, results["fill_ms"]):
            yield f"OVER {case['key']}: {', '.join(what)}"
    for found in results["search"]:
        if found["most_ms"] > ROW * results["fill_ms"]:
            yield f"OVER search, {found['processor']}: {found['most_ms']} ms: {found['request']}"
