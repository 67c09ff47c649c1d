"""Questions about a row of logits that the device can answer without the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sglang_lp.edits.ids import Ids

__all__ = ["Question"]


class LogitsRow(Protocol):
    """The row of logits that a question is about."""

    def is_among_top(self, ids: Ids | list[int], count: int) -> bool:
        """Wait for the device, and tell whether one of these tokens is among the likeliest."""


class Question:
    """Whether one of some tokens is among the likeliest. As a truth value the host waits for it.

    Attributes:
        read: The row.
        ids: The tokens.
        count: How many of the likeliest.
    """

    __slots__ = ("count", "ids", "read")

    def __init__(self, read: LogitsRow, ids: Ids | list[int], count: int) -> None:
        self.read = read
        self.ids = ids
        self.count = count

    def __bool__(self) -> bool:
        return self.read.is_among_top(self.ids, self.count)
