"""The rows of a batch that run by forms, as arrays, and the tokens that they got."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp._engine.forms.slots import LAST, POSITION, RESUMED, UNKNOWN, WAKE, find_watched
from sglang_lp.forms.form import Group

if TYPE_CHECKING:
    from sglang_lp._engine.forms.slots import Slots
    from sglang_lp._engine.history.row import Row
    from sglang_lp.forms.form import Form


class Members:
    """The rows of a batch that run by forms; made anew when the batch changes.

    Args:
        rows: The rows of the batch.
        slots: Their numbers.

    Attributes:
        rows: Those with a form.
        index: For each its index in the batch.
        slots: For each its slot.
        groups: The rows of each form.
        room: The most entries of one kind that a step can have.
        width: The most tokens of a question.
    """

    def __init__(self, rows: Sequence[Row | None], slots: Slots) -> None:
        found = [
            (index, row, row.form)
            for index, row in enumerate(rows)
            if row is not None and row.form is not None
        ]
        self.rows = [row for _, row, _ in found]
        self.index = np.array([index for index, _, _ in found], np.int64)
        self.slots = np.array([formed.slot for _, _, formed in found], np.int64)
        self.room = sum(part.most for _, _, formed in found for part in formed.parts)
        self.width = max((part.asks for _, _, formed in found for part in formed.parts), default=0)
        self._numbers = slots
        self._sources = [row.source for row in self.rows]
        self._outputs = [row.output_ids for row in self.rows]
        self._pending = self.rows[0].host.pending if self.rows else None
        by_form: dict[Form, list[tuple[int, int, int]]] = {}
        for place, (_, _, formed) in enumerate(found):
            for part in formed.parts:
                by_form.setdefault(part.form, []).append((place, part.block.at, part.before))
        self.groups = [
            (form, Group(*np.array(own, np.int64).T.copy())) for form, own in by_form.items()
        ]
        watching = [
            (place, formed.watch.at, formed.watch.size)
            for place, (_, _, formed) in enumerate(found)
            if formed.watch is not None
        ]
        self._watching = np.array(watching, np.int64).reshape(-1, 3)
        self._reads_tokens = bool(watching) or any(form.reads_tokens for form in by_form)

    def read(self) -> tuple[Any, Sequence[int]]:
        """Read the one token that each row got since the last step.

        Returns:
            The tokens, int64; and the places of rows whose history is no longer the one that was
            fed and one token more. Tokens are fed only if there are none.
        """
        try:
            outputs = [source.output_ids for source in self._sources]
        except ReferenceError:  # the host has freed a request
            return None, range(len(self._sources))
        known = self._numbers.numbers[self.slots]
        if not (all(map(is_, outputs, self._outputs)) and all(outputs)):
            pairs = zip(outputs, self._outputs, strict=True)
            return None, [
                at for at, (one, other) in enumerate(pairs) if one is not other or not one
            ]
        lengths = np.fromiter(map(len, outputs), np.int64, len(outputs))
        if self._reads_tokens:
            tokens, before, pending = self._newest(outputs)
            last = known[:, LAST]
            wrong = (before != last) & (last != UNKNOWN)
        else:  # without waiting for the device
            pending = 0 if self._pending is None else self._pending.counts_of(self._outputs)
            tokens, wrong = np.full(len(outputs), UNKNOWN), np.zeros(len(outputs), np.bool_)
        position = known[:, POSITION] + 1
        wrong |= lengths + pending + known[:, RESUMED] != position
        wrong |= position >= known[:, WAKE]
        if len(self._watching):
            find_watched(self._numbers.watched.numbers, self._watching, tokens, wrong)
        return tokens, np.nonzero(wrong)[0].tolist()

    def _newest(self, outputs: Sequence[Sequence[int]]) -> tuple[Any, Any, Any]:
        """Return the newest token of each row, the one before, and how many are pending."""
        count = len(outputs)
        newest = np.fromiter([tokens[-1] for tokens in outputs], np.int64, count)
        if self._pending is None:
            return newest, np.array([*map(_before_last, outputs)], np.int64), 0
        tokens, pending = self._pending.newest_of(self._outputs)
        if pending.all():  # nearly always
            return tokens, newest, pending
        before = newest.copy()
        for place in np.nonzero(pending == 0)[0].tolist():
            tokens[place], before[place] = newest[place], _before_last(outputs[place])
        return tokens, before, pending

    def feed(self, tokens: Any) -> Any:
        """Note that rows were fed a token each; return their positions."""
        numbers = self._numbers.numbers
        numbers[self.slots, LAST] = tokens
        positions = numbers[self.slots, POSITION] + 1
        numbers[self.slots, POSITION] = positions
        return positions


def _before_last(tokens: Sequence[int]) -> int:
    """Return the token before the last; a number that is no token if there is none."""
    return tokens[-2] if len(tokens) > 1 else -2
