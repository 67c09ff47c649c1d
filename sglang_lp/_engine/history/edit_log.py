"""The edit log: at which positions of an answer a request was edited, and where forced.

Written by the row at each step, and read for the report of the answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from sglang_lp._engine.apply.answers import PendingAnswer

#: Most spans that a report has.
_MAX_SPANS = 1024

#: Number of the newest spans that are kept beyond the cap, to remove positions behind the end of an
#: answer: at most the nodes of two verify steps.
_MAX_NEWEST = 1024


class Spans:
    """Positions, as spans in ascending order.

    Attributes:
        spans: Each as first position and the position after the last.
        total: Number of positions that were added, also those beyond the last span.
        cut: The first position that has no span because there are too many, or ``None``.
    """

    __slots__ = ("_end", "_newest", "cut", "spans", "total")

    def __init__(self) -> None:
        self.spans: list[list[int]] = []
        self._newest: deque[list[int]] = deque(maxlen=_MAX_NEWEST)
        self.total = self._end = 0
        self.cut: int | None = None

    def add(self, start: int, stop: int) -> None:
        """Add the positions from ``start`` to before ``stop``, unless they were added already."""
        spans, start = self.spans, max(start, self._end)
        if stop <= start:
            return
        self.total += stop - start
        self._end = stop
        if spans and spans[-1][1] == start:
            spans[-1][1] = stop
        elif len(spans) < _MAX_SPANS:
            spans.append([start, stop])
        else:
            self._newest.append([start, stop])
            if self.cut is None:
                self.cut = start

    def keep_before(self, length: int) -> None:
        """Remove the positions behind the end of an answer of ``length`` tokens."""
        for spans in (self._newest, self.spans):
            while spans and spans[-1][1] > length:
                start, stop = spans.pop()
                self.total -= stop - max(start, length)
                if start < length:
                    spans.append([start, length])
        self._end = min(self._end, length)

    def before(self, length: int) -> list[list[int]]:
        """Return the spans of an answer of ``length`` tokens."""
        return [[start, min(stop, length)] for start, stop in self.spans if start < length]

    def without(self, others: Spans) -> Spans:
        """Return the positions that other spans do not have."""
        remaining, removed, index = Spans(), others.spans, 0
        for start, stop in self.spans:
            while index < len(removed) and removed[index][0] < stop:
                first, end = removed[index]
                remaining.add(start, first)
                start = max(start, end)  # noqa: PLW2901 - the rest of the span
                if end > stop:  # it also covers the next span
                    break
                index += 1
            remaining.add(start, stop)
        return remaining


class EditRecorder(Protocol):
    """Takes the edits of a row: its log, or a recorder that keeps or sends them instead."""

    def add(self, position: int, *, forced: bool | PendingAnswer) -> None:
        """Add the step edits of one position."""

    def set_persistent(self, position: int, *, exist: bool, forced: bool) -> None:
        """Open or close the span of persistent edits."""


class _PendingEdit(NamedTuple):
    """Edits of one position that may not count, or may not force.

    Attributes:
        position: The position.
        path: Drafted tokens right before it: the edits count if the answer has them.
        forced: Whether a token is forced; the device's answer if that decides.
    """

    position: int
    path: list[int]
    forced: bool | PendingAnswer


class EditLog:
    """The edit log of one request.

    Consecutive positions with step edits form a run, which becomes a span when it ends. Persistent
    edits are one open span. Entries are *pending* while the tokens right before them, or the
    device's answer, are not known.
    """

    __slots__ = (
        *("_edited", "_forced", "_pending", "_persistent"),
        *("_run_forces", "_run_start", "_run_stop"),
    )

    def __init__(self) -> None:
        self._edited, self._forced = Spans(), Spans()
        #: The run of step edits: its first position, the position after its last, and whether it
        #: forces. -1 if there is none.
        self._run_start = self._run_stop = -1
        self._run_forces = False
        #: First position of the persistent edits, and whether they force a token.
        self._persistent: tuple[int, bool] | None = None
        self._pending: list[_PendingEdit] = []

    def add(self, position: int, *, forced: bool | PendingAnswer) -> None:
        """Add the step edits of one position."""
        if position == self._run_stop and forced is self._run_forces:  # nearly always
            self._run_stop = position + 1
            return
        self._run_stop = min(self._run_stop, position)  # the rest is of a step that is repeated
        self._flush()
        if self._pending or not isinstance(forced, bool):
            # Pending entries from here on are of a step whose result was dropped.
            self._pending = [edit for edit in self._pending if edit.position < position]
            self._pending.append(_PendingEdit(position, [], forced))
            return
        if self._persistent is not None:  # close its span up to here, and open it again
            start, forces = self._persistent
            self._close(position)
            self._persistent = max(start, position), forces
        self._run_start, self._run_stop, self._run_forces = position, position + 1, forced

    def add_run(self, start: int, stop: int, *, forced: bool) -> None:
        """Add the step edits of consecutive positions; nothing may be pending."""
        if self._persistent is None:  # nearly always
            self._flush()
            self._add_span(start, stop, forced=forced)
        else:
            self.add(start, forced=forced)
            self._run_stop = stop

    @property
    def is_settled(self) -> bool:
        """Whether nothing is pending."""
        return not self._pending

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

    def add_drafted(self, position: int, path: list[int], *, forced: bool | PendingAnswer) -> None:
        """Add edits that count if the drafted tokens right before them are accepted."""
        self._pending.append(_PendingEdit(position, path, forced))

    def set_persistent(self, position: int, *, exist: bool, forced: bool) -> None:
        """Open or close the span of persistent edits.

        Args:
            position: The first position that the change affects.
            exist: Whether there are persistent edits from here on.
            forced: Whether they force a token.
        """
        self._close(position)
        self._persistent = (position, forced) if exist else None

    def resolve(self, output_ids: Sequence[int]) -> None:
        """Decide the pending entries that the generated tokens reach by now."""
        if not self._pending:
            return
        length = len(output_ids)
        reached = sorted(
            (edit for edit in self._pending if edit.position < length), key=lambda e: e.position
        )
        later = [edit for edit in self._pending if edit.position >= length and not edit.path]
        self._pending = []
        for position, path, forced in reached:
            if [*output_ids[position - len(path) : position]] != path:
                continue
            is_forced = bool(forced)
            if is_forced or not isinstance(forced, PendingAnswer) or forced.is_edited:
                self.add(position, forced=is_forced)
        self._pending = later

    def finish(self, output_ids: Sequence[int]) -> None:
        """Close the log of a whole answer, without what was decided behind its end."""
        length = len(output_ids)
        self.resolve(output_ids)
        self._close(length)
        self._edited.keep_before(length)
        self._forced.keep_before(length)

    def report(self, since: int, length: int) -> dict[str, Any]:
        """Return the report of the positions of an answer.

        Args:
            since: Position of its first token.
            length: Number of its tokens.
        """
        only_edited = self.edited.without(self.forced)
        known = (self.edited, self.forced, only_edited)
        cuts = [spans.cut for spans in known if spans.cut is not None]
        end = min([*cuts, since + length])

        def shifted(spans: Spans) -> list[list[int]]:
            return [[start - since, stop - since] for start, stop in spans.before(end)]

        return {
            "forced": self.forced.total,
            "forced_at": shifted(self.forced),
            "edited": shifted(only_edited),
            "truncated": end - since if end < since + length else None,
        }

    def _close(self, position: int) -> None:
        """End the run and the span of persistent edits before a position."""
        self._flush()
        if self._persistent is not None:
            start, forced = self._persistent
            self._add_span(start, position, forced=forced)
            self._persistent = None

    def _flush(self) -> None:
        """End the run of step edits."""
        if self._run_stop >= 0:
            self._add_span(self._run_start, self._run_stop, forced=self._run_forces)
            self._run_start = self._run_stop = -1

    def _add_span(self, start: int, stop: int, *, forced: bool) -> None:
        self._edited.add(start, stop)
        if forced:
            self._forced.add(start, stop)
