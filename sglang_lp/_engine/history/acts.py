"""What was done to a request: at which positions of its answer, and where tokens were forced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_lp._engine.apply.answers import Told

__all__ = ["Acts", "Spans"]

#: Most spans that are told of an answer.
_MAX_SPANS = 1024


class Spans:
    """Positions, as spans in ascending order.

    Attributes:
        spans: Each as first position and the one after the last.
        total: How many positions were added, also those that are in no span.
        cut: The first position that is in no span because there are too many.
    """

    __slots__ = ("_end", "cut", "spans", "total")

    def __init__(self) -> None:
        self.spans: list[list[int]] = []
        self.total = self._end = 0
        self.cut: int | None = None

    def add(self, start: int, stop: int) -> None:
        """Add the positions from ``start`` up to ``stop``; those before the newest count once."""
        spans, start = self.spans, max(start, self._end)
        if stop <= start:
            return
        self.total += stop - start
        self._end = stop
        if spans and spans[-1][1] == start:
            spans[-1][1] = stop
        elif len(spans) < _MAX_SPANS:
            spans.append([start, stop])
        elif self.cut is None:
            self.cut = start

    def before(self, length: int) -> list[list[int]]:
        """Return the spans of an answer of ``length`` tokens."""
        return [[start, min(stop, length)] for start, stop in self.spans if start < length]

    def without(self, others: Spans) -> Spans:
        """Return the positions that are not among others."""
        left, taken, i = Spans(), others.spans, 0
        for start, stop in self.spans:
            since = start
            while i < len(taken) and taken[i][0] < stop:
                first, end = taken[i]
                left.add(since, first)
                since = max(since, end)
                if end > stop:  # it goes on in the next span
                    break
                i += 1
            left.add(since, stop)
        return left


class Acts:
    """Takes down what becomes of one request."""

    __slots__ = ("_edited", "_forced", "_forces", "_open", "_since", "_standing", "_until")

    def __init__(self) -> None:
        self._edited, self._forced = Spans(), Spans()
        #: Edits of positions that follow each other, if there are any: the first, the one after
        #: the last, and whether they force.
        self._since = self._until = -1
        self._forces = False
        #: Where edits began that hold until told otherwise, and whether they force a token.
        self._standing: tuple[int, bool] | None = None
        #: What is counted once the tokens there are known: the position, the drafts right before
        #: it, and whether a token is forced.
        self._open: list[tuple[int, list[int], bool | Told]] = []

    def note(self, position: int, *, forced: bool | Told) -> None:
        """Take down the edits of one position."""
        if position == self._until and forced is self._forces:  # nearly always
            self._until = position + 1
            return
        self._flush()
        if self._open or not isinstance(forced, bool):
            # What is open from here on is of a step whose result was dropped.
            self._open = [one for one in self._open if one[0] < position]
            self._open.append((position, [], forced))
            return
        if self._standing is not None:  # first what held before it
            start, holds = self._standing
            self._close(position)
            self._standing = max(start, position), holds
        self._since, self._until, self._forces = position, position + 1, forced

    @property
    def edited(self) -> Spans:
        """Positions whose logits were edited."""
        self._flush()
        return self._edited

    @property
    def forced(self) -> Spans:
        """Positions whose token was forced."""
        self._flush()
        return self._forced

    def note_drafted(self, position: int, path: list[int], *, forced: bool | Told) -> None:
        """Take down edits that count if the tokens right before them are accepted."""
        self._open.append((position, path, forced))

    def stand(self, position: int, *, some: bool, forced: bool) -> None:
        """Take down that from here on edits hold, or no longer do."""
        self._close(position)
        self._standing = (position, forced) if some else None

    def settle(self, output_ids: Sequence[int]) -> None:
        """Count what was open, as far as the answer has come since."""
        if not self._open:
            return
        length = len(output_ids)
        came = sorted((one for one in self._open if one[0] < length), key=lambda one: one[0])
        later = [one for one in self._open if one[0] >= length and not one[1]]
        self._open = []
        for position, path, forced in came:
            if [*output_ids[position - len(path) : position]] != path:
                continue
            is_forced = bool(forced)
            if is_forced or not isinstance(forced, Told) or forced.is_edited:
                self.note(position, forced=is_forced)
        self._open = later

    def finish(self, output_ids: Sequence[int]) -> None:
        """Close the account of a whole answer."""
        self.settle(output_ids)
        self._close(len(output_ids))

    def told(self, since: int, length: int) -> dict[str, Any]:
        """Return what the report says of the positions of an answer.

        Args:
            since: Position of its first token.
            length: Number of its tokens.
        """
        cuts = [one.cut for one in (self.edited, self.forced) if one.cut is not None]
        end = min([*cuts, since + length])

        def spans(of: Spans) -> list[list[int]]:
            return [[start - since, stop - since] for start, stop in of.before(end)]

        return {
            "forced": min(self.forced.total, length),
            "forced_at": spans(self.forced),
            "edited": spans(self.edited.without(self.forced)),
            "truncated": end - since if end < since + length else None,
        }

    def _close(self, position: int) -> None:
        self._flush()
        if self._standing is not None:
            start, forced = self._standing
            self._add(start, position, forced=forced)
            self._standing = None

    def _flush(self) -> None:
        if self._until >= 0:
            self._add(self._since, self._until, forced=self._forces)
            self._since = self._until = -1

    def _add(self, start: int, stop: int, *, forced: bool) -> None:
        self._edited.add(start, stop)
        if forced:
            self._forced.add(start, stop)
