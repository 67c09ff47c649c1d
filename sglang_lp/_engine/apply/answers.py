"""Answers of the device to questions about the logits of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sglang_lp._engine.apply.device import Copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class Answers:
    """The device's answers for the rows of one step.

    Attributes:
        on_device: The answers, shape ``(rows,)``; ``None`` before there are any, and once they are
            read.
    """

    __slots__ = ("_coming", "_known", "on_device")

    def __init__(self) -> None:
        self.on_device: torch.Tensor | None = None
        self._coming: Copy | None = None
        self._known: list[bool] = []

    def fetch(self, answers: torch.Tensor) -> None:
        """Start the copy of the answers to the host; shape ``(rows,)``."""
        self.on_device, self._coming = answers, Copy(answers)

    def of(self, row: int) -> bool:
        """Return the answer for a row of the logits; false if the step failed before it.

        Waits for the device unless the step is over.
        """
        known = self.known()
        return bool(known) and known[row]

    def known(self) -> Sequence[bool]:
        """Return the answers for all rows, none if the step failed before them; waits as ``of``."""
        if self._coming is not None:
            self._known, self._coming, self.on_device = self._coming.read(), None, None
        return self._known


class PendingAnswer(NamedTuple):
    """Whether a token is forced, as the device will answer.

    Attributes:
        answers: The answers of the step.
        row: Row of the logits.
        is_edited: Whether the row is edited if no token is forced.
    """

    answers: Answers
    row: int
    is_edited: bool

    def __bool__(self) -> bool:
        return self.answers.of(self.row)
