"""The rows of a batch that run by forms, as arrays, and the tokens that they got."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sglang_lp._engine.forms.slots import FED, LAST, LIMIT, RESUMED, UNKNOWN, WAKE
from sglang_lp._engine.forms.walk import find_watched, walk
from sglang_lp.forms.form import COLUMNS, Group

if TYPE_CHECKING:
    from sglang_lp._engine.forms.slots import Slots
    from sglang_lp._engine.history.row import Row
    from sglang_lp.forms.form import Form


class New(NamedTuple):
    """The tokens of a step.

    Attributes:
        tokens: The tokens that rows got since the last step, row after row, int64.
        since: Shape ``(rows + 1,)``, int64: where the tokens of each row begin, and their number.
        visits: ``numbers`` of :class:`~sglang_lp.forms.form.Visits`.
        first: ``first`` of :class:`~sglang_lp.forms.form.Visits`.
        deepest: ``deepest`` of :class:`~sglang_lp.forms.form.Visits`.
    """

    tokens: Any
    since: Any
    visits: Any
    first: Any
    deepest: int


class Members:
    """The rows of a batch that run by forms; made anew when the batch changes.

    Args:
        rows: The rows of the batch, ``None`` for a request without a processor.
        slots: The slots of all rows that run by forms.

    Attributes:
        rows: The rows that run by forms. The index of a row here is its *place*.
        index: Index of each in the batch, shape ``(places,)``, int64.
        slots: Slot of each, shape ``(places,)``, int64.
        groups: Each form with its rows.
        room: Sum over the rows of the most entries of one kind that a row of the logits has.
        width: The most tokens of a question.
        no_drafts: The drafts of a step without drafts, shape ``(places, 1, 4)``, int64.
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
        self.no_drafts = np.full((len(found), 1, 4), -1, np.int64)
        self._all_slots = slots
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

    def read(self, trees: Any) -> tuple[New | None, Sequence[int]]:
        """Read the tokens that each row got since the last step.

        Args:
            trees: The drafts of the rows, as for :func:`~sglang_lp._engine.forms.walk.walk`.

        Returns:
            The tokens, and the places of rows that have to be asked by themselves. If there are
            such places, the caller leaves them out and reads again. They are:

            - a row that got no token;
            - a row whose history no longer begins with the tokens that were fed;
            - a row that reaches the position, or a watched token, at which it has to be asked.
        """
        try:
            outputs = [source.output_ids for source in self._sources]
        except ReferenceError:  # the host has freed a request
            return None, range(len(self._sources))
        if not (all(map(is_, outputs, self._outputs)) and all(outputs)):
            pairs = zip(outputs, self._outputs, strict=True)
            return None, [
                at for at, (one, other) in enumerate(pairs) if one is not other or not one
            ]
        known = self._all_slots.numbers[self.slots]
        position, width = known[:, FED], trees.shape[1]
        tokens, counts, wrong = (
            self._new(outputs, known) if width == 1 else self._news(outputs, known)
        )
        wrong |= counts < 1
        wrong |= position + counts + (width - 1) >= known[:, WAKE]
        if wrong.any():
            return None, np.nonzero(wrong)[0].tolist()
        since = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=since[1:])
        numbers = np.empty((len(tokens) + len(counts) * (width - 1), COLUMNS), np.int64)
        first = np.empty_like(since)
        deepest = walk(
            tokens, since, position, known[:, LIMIT], self.index, trees, width, numbers, first
        )
        if len(self._watching):
            find_watched(self._all_slots.watched.numbers, self._watching, numbers, first, wrong)
        return New(tokens, since, numbers, first, deepest), np.nonzero(wrong)[0].tolist()

    def _new(self, outputs: Sequence[Sequence[int]], known: Any) -> tuple[Any, Any, Any]:
        """Return the token that each row got, a count of 1 for each, and whose history differs.

        Args:
            outputs: Generated tokens of each row, as the host has them.
            known: Columns of :class:`~sglang_lp._engine.forms.slots.Slots` for each row.

        Returns:
            int64, int64 and bool, one entry for each row.
        """
        lengths = np.fromiter(map(len, outputs), np.int64, len(outputs))
        if self._reads_tokens:
            tokens, before, pending = self._newest(outputs)
            last = known[:, LAST]
            wrong = (before != last) & (last != UNKNOWN)
        else:  # without waiting for the device
            pending = 0 if self._pending is None else self._pending.counts_of(self._outputs)
            tokens, wrong = np.full(len(outputs), UNKNOWN), np.zeros(len(outputs), np.bool_)
        wrong |= lengths + pending + known[:, RESUMED] != known[:, FED] + 1
        return tokens, np.ones(len(outputs), np.int64), wrong

    def _news(self, outputs: Sequence[Sequence[int]], known: Any) -> tuple[Any, Any, Any]:
        """Return the tokens that rows got, row after row, how many each, and whose history differs.

        Args:
            outputs: As for :meth:`_new`.
            known: As for :meth:`_new`.
        """
        count = len(outputs)
        if self._pending is None:
            pending, counts = np.empty(0, np.int64), np.zeros(count, np.int64)
        else:
            pending, counts = self._pending.accepted_of(self._outputs)
        fed, last = known[:, FED] - known[:, RESUMED], known[:, LAST]
        lengths = np.fromiter(map(len, outputs), np.int64, count)
        if (lengths == fed).all():  # nearly always, with overlap
            before = np.fromiter([tokens[-1] for tokens in outputs], np.int64, count)
            return pending, counts, (before != last) & (last != UNKNOWN)
        ends = np.cumsum(counts).tolist()
        news, wrong = list[Sequence[int]](), list[bool]()
        for output, end, more, read, newest in zip(
            outputs, ends, counts.tolist(), fed.tolist(), last.tolist(), strict=True
        ):
            own = [*output[max(0, read - 1) :], *pending[end - more : end].tolist()]
            own = own[max(0, read - 1 - len(output)) :]
            news.append(own[1:] if read else own)
            wrong.append(read > 0 and newest != UNKNOWN and own[:1] != [newest])
        tokens = np.array([*chain.from_iterable(news)], np.int64)
        return tokens, np.array([*map(len, news)], np.int64), np.array(wrong, np.bool_)

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

    def feed(self, new: New) -> None:
        """Note in the slots which tokens the rows were fed."""
        numbers = self._all_slots.numbers
        numbers[self.slots, LAST] = new.tokens[new.since[1:] - 1]
        numbers[self.slots, FED] += new.since[1:] - new.since[:-1]


def _before_last(tokens: Sequence[int]) -> int:
    """Return the token before the last; a number that is no token if there is none."""
    return tokens[-2] if len(tokens) > 1 else -2
