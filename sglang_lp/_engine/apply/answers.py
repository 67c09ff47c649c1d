"""Answers of the device to questions about the logits of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sglang_lp._engine.apply.device import Copy

if TYPE_CHECKING:
    import torch

__all__ = ["Answers", "Told"]


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
