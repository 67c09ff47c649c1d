"""Tables of the benchmarks in Markdown, and the figures in their cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["duration", "table", "verdict"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def duration(micro: float | None) -> str:
    """Return microseconds with three digits and a unit that suits them, or ``-`` for ``None``."""
    if micro is None:
        return "-"
    if micro < 1000:
        return f"{micro:.3g} µs"
    return f"{micro / 1000:.3g} ms" if micro < 1e6 else f"{micro / 1e6:.3g} s"


def verdict(*, met: bool) -> str:
    """Return the cell that says whether a limit was kept."""
    return "yes" if met else "**no**"
