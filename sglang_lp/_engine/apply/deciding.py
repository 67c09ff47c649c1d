"""Edits that depend on a question about the logits (``force_if``), decided on the device.

The device compares the logits, and either forces the token or applies the other edits: a fixed
number of tensor operations, however many rows ask. The answers are copied to the host without a
wait; the edit log reads them once the tokens of the step are known, and the processor sees those
tokens.

The host waits for an answer and decides itself if the answer could end the request, or if there is
more to it than the device decides.
"""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.compiled.conflicts import forced_conflict, leaves_none
from sglang_lp.edits.ids import Ids
from sglang_lp.edits.recording import Recording
from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.answers import Answers
    from sglang_lp._engine.apply.reading import Logits
    from sglang_lp._engine.compiled.edits import CompiledEdits

_MINUS_INF = -math.inf

#: Most ids of a question, and its largest count, that the device answers.
_MOST_IDS = _MOST_COUNT = 1024
#: Numbers of a question after its ids.
_NUMBERS = 3


def decide(recording: Recording, persistent: CompiledEdits | None, *, on_host: bool) -> None:
    """Answer the questions of a row on the host, except one that the device can answer.

    If one is left to the device, the edits for its other answer become edits of the row: a forced
    token replaces them.

    Args:
        recording: The step edits of the row, changed in place.
        persistent: The persistent edits of the row.
        on_host: Whether the host answers every question.

    Raises:
        ProcessorFault: ``hold_until`` with a question, or ``pool`` for the other answer.
    """
    if recording.holds:
        raise ProcessorFault("hold_until() is not for a step with force_if()")
    for one in recording.conditional:
        if one.otherwise.pooled:
            raise ProcessorFault("pool() is not for the other answer of force_if()")
    if len(recording.conditional) == 1 and not (on_host or _may_end(recording, persistent)):
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


def _may_end(recording: Recording, persistent: CompiledEdits | None) -> bool:
    """Tell whether the host needs the answer: edits are unusual, or may leave no token."""
    ((question, token_id, otherwise),) = recording.conditional
    if (
        len(question.ids) > _MOST_IDS
        or question.count > _MOST_COUNT
        or otherwise.conditional
        or otherwise.standing is not None
        or otherwise.end is not None
        or otherwise.forced is not None
        or recording.forced is not None
        or (persistent is not None and persistent.forced is not None)
        or recording.pooled
    ):
        return True
    if persistent is None and recording.standing is None and not recording.edits_else:
        return leaves_none(otherwise, None)  # nearly always: no other edits
    if_so, if_not = Recording(recording.vocab_size), Recording(recording.vocab_size)
    for one in (recording, recording.standing):
        if one is not None:
            for both in (if_so, if_not):
                both.add(one)
    if_so.force(token_id)
    if_not.add(otherwise)
    conflict = forced_conflict(if_so)
    if conflict is None and persistent is not None:
        conflict = persistent.conflict_with(if_so)
    before = None if persistent is None else persistent.mask
    return conflict is not None or leaves_none(if_not, before)


class _RowQuestion(NamedTuple):
    """The question of one row."""

    row: int
    ids: Ids | list[int]
    most: int
    token_id: int
    has_grammar: bool


class DeviceQuestions:
    """The questions of one step that the device answers, at most one for each row of the logits.

    Args:
        rows: Number of rows of the logits.
        stride: Distance between them in the flat logits.
    """

    __slots__ = (
        *("_answers", "_asked", "_counts", "_formed", "_forced", "_free", "_ids", "_rows"),
        *("_stride", "_width"),
    )

    def __init__(self, rows: int, stride: int) -> None:
        self._rows, self._stride = rows, stride
        self._asked: list[_RowQuestion] = []
        #: The rows that ask by a form, and their questions.
        self._formed: tuple[Any, Any] | None = None
        self._width = 0

    def add(self, row: int, recording: Recording, *, has_grammar: bool) -> None:
        """Add the question of a row.

        Args:
            row: Row of the logits.
            recording: Its edits, with one open question.
            has_grammar: As for :meth:`~sglang_lp._engine.apply.plan_builder.PlanBuilder.add_step`.
        """
        ((question, token_id, _),) = recording.conditional
        self._asked.append(_RowQuestion(row, question.ids, question.count, token_id, has_grammar))
        self._width = max(self._width, len(question.ids))

    def add_forms(self, rows: Any, questions: Any) -> None:
        """Add the questions of rows that run by forms.

        Args:
            rows: Rows of the logits, int64.
            questions: For each row as in :class:`~sglang_lp.forms.out.Out`.
        """
        if len(rows):
            self._formed = rows, questions
            self._width = max(self._width, questions.shape[1] - _NUMBERS)

    def __bool__(self) -> bool:
        return bool(self._asked) or self._formed is not None

    def packed(self) -> torch.Tensor:
        """Return the questions in one int64 tensor of one dimension, for one copy."""
        import numpy as np
        import torch

        width, asked = self._width, array("q")
        # One array for all rows: numpy takes longer row by row (``benchmarks/drafts/at_work``).
        for _, ids, most, token_id, has_grammar in self._asked:
            if isinstance(ids, Ids):
                asked.frombytes(ids.tensor.numpy().tobytes())
                first = ids.smallest
            else:
                asked.extend(ids)
                first = ids[0]
            asked.extend([first] * (width - len(ids)))
            asked.extend((token_id, most, has_grammar))
        packed = np.zeros((self._rows, width + _NUMBERS), dtype=np.int64)
        packed[[one.row for one in self._asked]] = np.frombuffer(asked, dtype=np.int64).reshape(
            -1, width + _NUMBERS
        )
        if self._formed is not None:
            rows, questions = self._formed
            packed[rows, :width] = questions[:, :1]
            packed[rows, : questions.shape[1] - _NUMBERS] = questions[:, :-_NUMBERS]
            packed[rows, width:] = questions[:, -_NUMBERS:]
        packed[:, : width + 1] += np.arange(self._rows)[:, None] * self._stride
        return torch.from_numpy(packed).view(-1)

    def take(self, sent: torch.Tensor) -> None:
        """Unpack the questions on the device, where the packed tensor was sent."""
        width = self._width
        numbers = sent.view(self._rows, width + _NUMBERS)
        self._ids, self._forced = numbers[:, :width], numbers[:, width]
        self._counts = numbers[:, width + 1]
        self._free = None
        if any(one.has_grammar for one in self._asked):
            self._free = numbers[:, width + 2] == 0

    def judge(self, flat: torch.Tensor, read: Logits, answers: Answers) -> None:
        """Answer the questions, before any edit is applied.

        Args:
            flat: The logits, flat.
            read: The same logits.
            answers: Receives the answers.
        """
        most = max((one.most for one in self._asked), default=0)
        if self._formed is not None:
            most = max(most, int(self._formed[1][:, 1 - _NUMBERS].max()))
        best = flat.take(self._ids).amax(1)
        # Comparing and counting is a few kernels, sorting is twenty.
        highest = read.tensor.amax(1)
        if most == 1:  # nearly always
            # False for NaN, as below, and for rows without a question, whose count is 0.
            among = (best >= highest).logical_and_(self._counts)
        else:
            among = (read.tensor > best[:, None]).sum(1) < self._counts
            among.logical_and_(highest <= math.inf)
        self._answers = among.logical_and_(best > _MINUS_INF)
        answers.fetch(self._answers)

    def keep(self, flat: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of forced tokens, before other edits; ``None`` if all become 0.0."""
        if self._free is None:
            return None
        return flat.index_select(0, self._forced).masked_fill_(self._free, 0.0)

    def apply(self, logits: torch.Tensor, flat: torch.Tensor, kept: torch.Tensor | None) -> None:
        """Force the tokens of the rows whose answer is yes, after the other edits.

        Args:
            logits: Shape ``(rows, vocab)``, edited in place.
            flat: The same memory, flat.
            kept: Result of :meth:`keep`.
        """
        answers = self._answers
        if kept is None:
            forced = answers.log().to(logits.dtype)  # 0.0 for yes, -inf for no
        else:
            forced = kept.masked_fill_(answers.logical_not(), _MINUS_INF)
        logits.masked_fill_(answers[:, None], _MINUS_INF)
        # A token that is not forced is as large or larger; NaN stays NaN.
        flat.scatter_reduce_(0, self._forced, forced, "amax")
