"""Questions about a row of logits that the device can answer without the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sglang_lp._engine.apply.reading import ReadRow
    from sglang_lp.edits.ids import Ids
    from sglang_lp.edits.recording import Recording

__all__ = ["Conditional", "Question"]


class Question:
    """Whether one of some tokens is among the likeliest. As a truth value the host waits for it.

    Attributes:
        read: The row.
        ids: The tokens.
        count: How many of the likeliest.
    """

    __slots__ = ("count", "ids", "read")

    def __init__(self, read: ReadRow, ids: Ids | list[int], count: int) -> None:
        self.read = read
        self.ids = ids
        self.count = count

    def __bool__(self) -> bool:
        return self.read.is_among_top(self.ids, self.count)


class Conditional(NamedTuple):
    """Edits that depend on the answer.

    Attributes:
        question: The question.
        token_id: The token that is forced if so.
        otherwise: The edits if not.
    """

    question: Question
    token_id: int
    otherwise: Recording
