"""Edits that depend on an answer: decided on the device, which the host does not wait for.

The device compares, forces the token or leaves the other edits, and sends the answers after. The
host reads them when the tokens of the step are known, for what it tells of the request; what the
processor does next follows from those tokens. However many rows ask, that is a fixed number of
tensor operations. Where an answer could end a request, or is for more than the device decides, the
host waits for it and decides.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from sglang_lp._engine.compiled.conflicts import clash, clash_with, leaves_none
from sglang_lp.edits.ids import Ids
from sglang_lp.edits.recording import Recording
from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.answers import Answers
    from sglang_lp._engine.apply.reading import Logits
    from sglang_lp._engine.compiled.standing import Standing

__all__ = ["Deciding", "decide"]

_MINUS_INF = -math.inf

#: The device answers for so many tokens, among so many of the likeliest.
_MOST_IDS = _MOST_COUNT = 1024


def decide(recording: Recording, standing: Standing | None, *, here: bool) -> None:
    """Leave at most one answer of a step open, and that only if it cannot end the request.

    Args:
        recording: The edits of a row. Those that are for the other answer become edits of the row:
            a forced token takes their place.
        standing: The edits of the row that hold at every step.
        here: Whether the host decides.

    Raises:
        ProcessorFault: Edits that hold depend on an answer, or pools do.
    """
    if recording.holds:
        raise ProcessorFault("hold_until() is not for a step with force_if()")
    if any(one.otherwise.pooled for one in recording.conditional):
        raise ProcessorFault("pool() is not for the other answer of force_if()")
    if len(recording.conditional) == 1 and not (here or _may_end(recording, standing)):
        recording.add(recording.conditional[0].otherwise)
        return
    while recording.conditional:
        (question, token_id, otherwise), *others = recording.conditional
        recording.conditional = others
        if question:
            recording.force(token_id)
            continue
        recording.add(otherwise)
        recording.end = otherwise.end or recording.end
        if otherwise.standing is not None:
            recording.always().add(otherwise.standing)


def _may_end(recording: Recording, standing: Standing | None) -> bool:
    """Tell whether the host has to know the answer: an edit is unusual, or may leave no token."""
    ((question, token_id, otherwise),) = recording.conditional
    if (
        len(question.ids) > _MOST_IDS
        or question.count > _MOST_COUNT
        or otherwise.conditional
        or otherwise.standing is not None
        or otherwise.end is not None
        or otherwise.forced is not None
        or recording.forced is not None
        or (standing is not None and standing.forced is not None)
        or recording.pooled
    ):
        return True
    if_so, if_not = Recording(recording.vocab_size), Recording(recording.vocab_size)
    for one in (recording, recording.standing):
        if one is not None:
            for both in (if_so, if_not):
                both.add(one)
    if_so.force(token_id)
    if_not.add(otherwise)
    return (clash(if_so) or clash_with(standing, if_so)) is not None or leaves_none(
        if_not, standing
    )


class _Asked(NamedTuple):
    row: int
    ids: Ids | list[int]
    most: int
    token_id: int
    keep_masked: bool


class Deciding:
    """The open answers of one step: a question for some rows of the logits, none for the others.

    Args:
        rows: Rows of the logits.
        stride: Distance between them in the flat logits.
    """

    __slots__ = ("_answers", "_asked", "_counts", "_forced", "_free", "_ids", "_rows", "_stride")

    def __init__(self, rows: int, stride: int) -> None:
        self._rows, self._stride = rows, stride
        self._asked: list[_Asked] = []

    def ask(self, row: int, recording: Recording, *, keep_masked: bool) -> None:
        """Take down the question of a row.

        Args:
            row: Of the logits.
            recording: Its edits.
            keep_masked: As for :func:`~sglang_lp._engine.apply.placing.place`.
        """
        ((question, token_id, _),) = recording.conditional
        self._asked.append(_Asked(row, question.ids, question.count, token_id, keep_masked))

    def __bool__(self) -> bool:
        return bool(self._asked)

    @property
    def _width(self) -> int:
        return max(len(one.ids) for one in self._asked)

    def packed(self) -> torch.Tensor:
        """Return all that the device needs of them: one dimension, int64."""
        import numpy as np
        import torch

        width = self._width
        packed = np.zeros((self._rows, width + 3), dtype=np.int64)
        packed[:, : width + 1] = np.arange(self._rows)[:, None] * self._stride
        for row, ids, most, token_id, keep_masked in self._asked:
            own = packed[row]
            own[: len(ids)] += ids.tensor.numpy() if isinstance(ids, Ids) else ids
            own[len(ids) : width] = own[0]
            own[width] += token_id
            own[width + 1] = most
            own[width + 2] = keep_masked
        return torch.from_numpy(packed).view(-1)

    def take(self, sent: torch.Tensor) -> None:
        """Take what was packed where it has come to the device."""
        width = self._width
        numbers = sent.view(self._rows, width + 3)
        self._ids, self._forced = numbers[:, :width], numbers[:, width]
        self._counts = numbers[:, width + 1]
        self._free = None
        if any(one.keep_masked for one in self._asked):
            self._free = numbers[:, width + 2] == 0

    def judge(self, flat: torch.Tensor, read: Logits, answers: Answers) -> None:
        """Answer them, before anything is edited.

        Args:
            flat: The logits, flat.
            read: The logits.
            answers: Gets the answers.
        """
        most = max(one.most for one in self._asked)
        best = flat.take(self._ids).amax(1)
        # Fewer logits are larger, if it holds for the largest. NaN is not larger than any, and
        # comes first among these: twice as many leave room for what a model may have of it.
        larger = (read.topk(2 * most)[0] > best[:, None]).sum(1)
        self._answers = (larger < self._counts).logical_and_(best > _MINUS_INF)
        answers.fetch(self._answers)

    def keep(self, flat: torch.Tensor) -> torch.Tensor | None:
        """Return what forced tokens become, before the other edits are made; ``None`` for 0.0."""
        if self._free is None:
            return None
        return flat.index_select(0, self._forced).masked_fill_(self._free, 0.0)

    def apply(self, logits: torch.Tensor, flat: torch.Tensor, kept: torch.Tensor | None) -> None:
        """Force the tokens of the rows whose answer is yes, after the other edits are made.

        Args:
            logits: Shape ``(rows, vocab)``, edited in place.
            flat: The same, flat.
            kept: What :meth:`keep` returned.
        """
        answers = self._answers
        if kept is None:
            forced = answers.log().to(logits.dtype)  # 0.0 for yes, -inf for no
        else:
            forced = kept.masked_fill_(answers.logical_not(), _MINUS_INF)
        logits.masked_fill_(answers[:, None], _MINUS_INF)
        # A token that is not forced is as large or larger; NaN stays NaN.
        flat.scatter_reduce_(0, self._forced, forced, "amax")
