"""When rows act, and whether anything about them has changed."""

from __future__ import annotations

__all__ = ["clock"]


class _Clock:
    """Of the process, because a stock server hands rows from one batch to another.

    Attributes:
        now: How many tokens a request can have got at most, see :mod:`sglang_lp._engine.batch`.
        changes: How often a row was made, woken from outside of a step, or given other edits that
            hold. While it stays, batches know what they knew.
    """

    __slots__ = ("changes", "now")

    def __init__(self) -> None:
        self.now = 1
        self.changes = 0

    def change(self) -> int:
        """Count a change, and return its number."""
        self.changes += 1
        return self.changes


clock = _Clock()
