"""Questions about a row of logits that the device can answer without the host, and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sglang_lp._engine.device import Copy

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.ids import Ids
    from sglang_lp._engine.reading import ReadRow
    from sglang_lp._engine.recording import Recording

__all__ = ["Answers", "Conditional", "Question", "Told"]


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


class Answers:
    """What the device says of the rows of one step."""

    __slots__ = ("_coming", "_known")

    def __init__(self) -> None:
        self._coming: Copy | None = None
        self._known: list[bool] = []

    def fetch(self, answers: torch.Tensor) -> None:
        """Let the answers come, shape ``(rows,)``."""
        self._coming = Copy(answers)

    def of(self, row: int) -> bool:
        """Return that of a row of the logits; no if the step failed before there was one.

        Waits only if the step is not over.
        """
        if self._coming is not None:
            self._known, self._coming = self._coming.read(), None
        return bool(self._known) and self._known[row]


class Told(NamedTuple):
    """Whether a token was forced, as the device will tell.

    Attributes:
        answers: Those of its step.
        row: Of the logits.
        is_edited: Whether the row is edited if no token was forced.
    """

    answers: Answers
    row: int
    is_edited: bool

    def __bool__(self) -> bool:
        return self.answers.of(self.row)
