"""The edits of a step as flat arrays, to which compiled calls append."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["ASK", "ASKS", "BAN", "BIAS", "DECIDED", "EDITED", "FORCE", "FORCED", "LACKS", "Out"]

#: Places in ``Out.counts``: how many entries ``ban``, ``bias``, ``fill`` and ``asked`` have; and 1
#: if one of them lacked room, otherwise 0.
BAN, BIAS, FORCE, ASK, LACKS = range(5)
#: Bits in ``Out.edited``. EDITED: the row has edits; FORCED: they leave one token; DECIDED: the
#: device decides whether they do; ASKS: the row has to be asked by itself in this step.
EDITED, FORCED, DECIDED, ASKS = 1, 2, 4, 8


class Out:
    """Growing buffers, filled anew at each step. A logit is its index in the flat logits.

    Attributes:
        ban: Logits that become ``-inf``, int64.
        bias: Logits that are biased, each once, int64.
        values: Their biases, float64.
        fill: Rows of the logits that become ``-inf``, int64.
        force: The logit of each of these rows that becomes 0.0, int64.
        counts: Number of entries of each kind, int64.
        asked: Rows of the logits in which the device decides whether a token is forced, int64.
        questions: For each of these rows the question, as
            :class:`~sglang_lp._engine.apply.deciding.DeviceQuestions` packs it, int64: tokens, the
            token that is forced if one of them is among so many likeliest, that number, and 0.
        edited: For each visit the bits of the edits of its row of the logits, uint8.
        marks: Scratch space of forms that see a token several times in a row: for each token the
            mark of the row that edited it last, and its place in ``bias``; shape ``(vocab, 2)``,
            int64.
        mark: The mark of the latest row; each row that needs one takes the next number.
    """

    def __init__(self) -> None:
        self.counts: Any = np.zeros(LACKS + 1, np.int64)
        self.ban = self.bias = self.fill = self.force = self.asked = np.empty(0, np.int64)
        self.questions: Any = np.empty((0, 3), np.int64)
        self.values: Any = np.empty(0)
        self.edited: Any = np.zeros(0, np.uint8)
        self.marks: Any = np.zeros((0, 2), np.int64)
        self.mark = 0

    def begin(self, visits: int, vocab_size: int, room: int, width: int) -> None:
        """Begin a step.

        Args:
            visits: How many visits the step has.
            vocab_size: Number of logits in a row.
            room: Most entries of ``ban``, and of ``bias``.
            width: Most tokens of a question.
        """
        self.counts[:] = 0
        if len(self.ban) < room:
            self.ban, self.bias = np.empty(room, np.int64), np.empty(room, np.int64)
            self.values = np.empty(room)
        if len(self.edited) < visits:
            self.edited = np.empty(2 * visits, np.uint8)
            self.fill, self.force = np.empty(2 * visits, np.int64), np.empty(2 * visits, np.int64)
            self.asked = np.empty(2 * visits, np.int64)
        if self.questions.shape[1] != width + 3 or len(self.questions) < visits:
            self.questions = np.empty((2 * visits, width + 3), np.int64)
        self.edited[:visits] = 0
        if len(self.marks) < vocab_size:
            self.marks, self.mark = np.zeros((vocab_size, 2), np.int64), 0

    def drop(self, requests: Any, width: int, stride: int) -> None:
        """Take out the edits of requests whose rows are asked by themselves.

        Args:
            requests: Their indices in the batch, int64.
            width: Rows of the logits of each request.
            stride: As in :class:`~sglang_lp.forms.form.Visits`.
        """
        of_request = width * stride
        for count, indices, each, others in (
            (BAN, self.ban, of_request, ()),
            (BIAS, self.bias, of_request, (self.values,)),
            (FORCE, self.fill, width, (self.force,)),
            (ASK, self.asked, width, (self.questions,)),
        ):
            end = int(self.counts[count])
            stay = ~np.isin(indices[:end] // each, requests)
            self.counts[count] = kept = np.count_nonzero(stay)
            for array in (indices, *others):
                array[:kept] = array[:end][stay]

    @property
    def is_whole(self) -> bool:
        """Whether every entry found room."""
        return not self.counts[LACKS]
