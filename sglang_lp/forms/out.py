"""The edits of a step as flat arrays, to which compiled calls append."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["ASKS", "BAN", "BIAS", "FORCE", "LACKS", "Out"]

#: Places in ``Out.counts``: how many entries the arrays have; and whether one lacked room.
BAN, BIAS, FORCE, LACKS = range(4)
#: In ``Out.edited``: the row has to be asked by itself in this step.
ASKS = 3


class Out:
    """Growing buffers of flat indices of logits, filled anew at each step.

    Attributes:
        ban: Logits that become ``-inf``.
        bias: Logits that are biased, each once.
        values: Their biases, float64.
        fill: Rows that become ``-inf``.
        force: The logit of each of these rows that becomes 0.0.
        counts: How many entries of each kind there are.
        edited: For each row of the forms: 0 for no edits, 1 for edits, 2 if they leave one token,
            ``ASKS``.
        marks: For each token the row that biased it last, as a number that no other row has, and
            the place in ``bias``; shape ``(vocab, 2)``.
    """

    def __init__(self) -> None:
        self.counts: Any = np.zeros(LACKS + 1, np.int64)
        self.ban = self.bias = self.fill = self.force = np.empty(0, np.int64)
        self.values: Any = np.empty(0)
        self.edited: Any = np.zeros(0, np.uint8)
        self.marks: Any = np.zeros((0, 2), np.int64)
        self.mark = 0

    def begin(self, rows: int, vocab_size: int, room: int) -> None:
        """Begin a step.

        Args:
            rows: How many rows the forms have.
            vocab_size: Number of logits in a row.
            room: Most entries of one kind.
        """
        self.counts[:] = 0
        if len(self.ban) < room:
            self.ban, self.bias = np.empty(room, np.int64), np.empty(room, np.int64)
            self.values = np.empty(room)
        if len(self.edited) < rows:
            self.edited = np.empty(2 * rows, np.uint8)
            self.fill, self.force = np.empty(2 * rows, np.int64), np.empty(2 * rows, np.int64)
        self.edited[:rows] = 0
        if len(self.marks) < vocab_size:
            self.marks, self.mark = np.zeros((vocab_size, 2), np.int64), 0

    @property
    def is_whole(self) -> bool:
        """Whether every entry found room."""
        return not self.counts[LACKS]
