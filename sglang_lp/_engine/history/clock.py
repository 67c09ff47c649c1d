"""The clock of the process: when rows wake, and whether a plan is still current."""

from __future__ import annotations


class _Clock:
    """One for the process, because a stock server moves rows from one batch to another.

    Attributes:
        now: The most tokens that a request can have got, see :mod:`sglang_lp._engine.batch`.
        version: Number of changes to any row: a new row, other persistent edits, or a wake-up from
            outside a step. A plan made at this version is current.
    """

    __slots__ = ("now", "version")

    def __init__(self) -> None:
        self.now = 1
        self.version = 0

    def next_version(self) -> int:
        """Count a change, and return the new version."""
        self.version += 1
        return self.version


clock = _Clock()
