"""Tables of the findings for ``docs/evidence.md``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.evidence.speed import BATCHES, TOKENS
from benchmarks.pages import Part
from benchmarks.tables import table

__all__ = ["PART", "page_block", "shown_share"]

_TITLES = {
    "loops": "Loops, greedy",
    "sampled": "Loops, at a temperature of 0.7",
    "tables": "Loops in long HTML tables",
    "bans": "Answers with banned words",
    "budgets": "Blocks under a budget",
    "calls": "Calls that parse",
    "speed": "Tokens a second",
}
Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]


def shown_share(found: Sequence[float]) -> str:
    """Return a fraction with its interval, such as ``3 of 40 (3-20 %)``."""
    hits, of, low, high = found
    return f"{hits} of {of} ({100 * low:.0f}-{100 * high:.0f} %)"


def _spread(rates: Sequence[float]) -> str:
    """Return a median with the least and the most, such as ``13.6 (12.9-14.1 in 5 rounds)``."""
    median = statistics.median(rates)
    return f"{median:.1f} ({min(rates):.1f}-{max(rates):.1f} in {len(rates)} rounds)"


def _number(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


_LOOPS: Columns = {
    "end in a loop": lambda row: shown_share(row["loops"]),
    "also where only numbers change": lambda row: shown_share(row["numbered"]),
    "finished by the model": lambda row: shown_share(row["finished"]),
    "tokens": lambda row: _number(row["tokens"], ".0f"),
}
_WITHOUT_LOOPS: Columns = {
    "without a loop before: same answer": lambda row: shown_share(row["calm"]["same"]),
    "start in common": lambda row: _number(row["calm"]["shared"]),
    "different words": lambda row: _number(row["calm"]["distinct"]),
    "tokens": lambda row: _number(row["calm"]["tokens"], ".0f"),
}
_BANS: Columns = {
    "answers with the word": lambda row: shown_share(row["leaks"]),
    "or in other letter case": lambda row: shown_share(row["any_case"]),
    "perplexity": lambda row: _number(row["perplexity"]),
    "start in common with none": lambda row: _number(row["shared"]),
}
_BUDGETS: Columns = {
    "blocks that close": lambda row: shown_share(row["closed"]),
    "within the budget": lambda row: shown_share(row["held"]) if row["held"] else "-",
    "tokens in the block, median": lambda row: _number(row["median"], ".0f"),
    "most": lambda row: _number(row["longest"], ".0f"),
    "closed again": lambda row: shown_share(row["again"]),
    "answers that finish": lambda row: shown_share(row["finished"]),
    "with something after the block": lambda row: shown_share(row["answered"]),
}
_CALLS: Columns = {
    "parse": lambda row: shown_share(row["parses"]),
    "name an existing function": lambda row: shown_share(row["known"]),
    "name the right one": lambda row: shown_share(row["right"]),
}
_TABLES: Mapping[str, Sequence[Columns]] = {
    "loops": [_LOOPS, _WITHOUT_LOOPS],
    "sampled": [_LOOPS, _WITHOUT_LOOPS],
    "tables": [_LOOPS, _WITHOUT_LOOPS],
    "bans": [_BANS],
    "budgets": [_BUDGETS],
    "calls": [_CALLS],
}


def _section(title: str, found: Mapping[str, Row]) -> Iterator[str]:
    for number, columns in enumerate(_TABLES[title]):
        rows = ([arm, *(show(row) for show in columns.values())] for arm, row in found.items())
        yield from ["", *table(["", *columns], rows)] if number else table(["", *columns], rows)
    failed = {arm: row["errors"] for arm, row in found.items() if row["errors"]}
    for arm, count in failed.items():
        yield f"\n{arm}: {count} requests were answered with an error."


def _speed(found: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> Iterator[str]:
    sizes = [*map(str, BATCHES)]
    rows = (
        [
            f"{server}: {arm}",
            *(_spread(of[size]) if size in of else "-" for size in sizes),
        ]
        for server, arms in found.items()
        for arm, of in arms.items()
    )
    yield from table(
        [
            f"tokens a second, answers of {TOKENS}",
            *(f"{n} at once" for n in sizes),
        ],
        rows,
    )


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    versions = f"SGLang {on['sglang']}, torch {on['torch']}, Python {on['python']}"
    load = f"load average at the end {on['load']}"
    lines = [f"Measured on: {on['cpu']}, {on['cores']} cores; {versions}; {load}."]
    for section, title in _TITLES.items():
        found = results.get(section)
        if not found:
            lines += ["", f"### {title}", "", "Not reached in this run."]
            continue
        lines += ["", f"### {title}", ""]
        lines += _speed(found) if section == "speed" else _section(section, found)
    return "\n".join(lines)


PART = Part("evidence", "evidence.md", page_block)
