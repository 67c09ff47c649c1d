"""Slots: what the engine knows of each row that runs by a form, in arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sglang_lp._engine.apply.answers import Answers, PendingAnswer
from sglang_lp._engine.forms.walk import CHILD, DRAFTED, HOW, NEXT
from sglang_lp.forms.arena import Arena
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import DEPTH, ROW
from sglang_lp.forms.out import DECIDED, EDITED, FORCED

if TYPE_CHECKING:
    from sglang_lp._engine.history.edit_log import EditLog
    from sglang_lp._engine.turns.turn import Turn
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Form

__all__ = ["Formed", "Part", "Slots"]

#: Columns of ``Slots.numbers``. FED: number of generated tokens that were fed, resumed ones
#: included; LAST: the newest of them; RESUMED: how many of them were resumed; LIMIT: number of
#: generated tokens with which the row ends; WAKE: position at which it has to be asked by itself;
#: ASKED: its first row of the logits in the last step, if the device decides there whether a token
#: is forced, otherwise -1. Then the latest run of positions with equal edits: SINCE, its first
#: position; UNTIL, the position after its last (-1: there is no run); RUN, bits of ``Out.edited``.
FED, LAST, RESUMED, LIMIT, WAKE, ASKED, SINCE, UNTIL, RUN = range(9)
_COLUMNS = 9
#: The newest token of a row whose form reads no tokens.
UNKNOWN = -1


class Slots:
    """Numbers of all rows with a form.

    Attributes:
        numbers: Shape ``(slots, columns)``, int64.
        drafted: The drafts of the last step, and how each node was edited: shape
            ``(slots, nodes, 4)``, int64, columns ``DRAFTED``, ``CHILD``, ``NEXT`` and ``HOW``.
        watched: The sets of watched tokens, as bits.
        left: How often a row has left its form.
        answers: The device's answers to the newest questions, until they are read.
    """

    def __init__(self) -> None:
        self.watched = Arena(np.int32)
        self.left = 0
        self.answers: Answers | None = None
        self.numbers: Any = np.zeros((16, _COLUMNS), np.int64)
        self.drafted: Any = np.zeros((16, 1, 4), np.int64)
        self._free: list[int] = []
        self._end = 0

    def take(self) -> int:
        """Return a free slot."""
        if self._free:
            return self._free.pop()
        if self._end == len(self.numbers):
            self.numbers = np.concatenate((self.numbers, np.zeros_like(self.numbers)))
            self.drafted = np.concatenate((self.drafted, np.zeros_like(self.drafted)))
        self._end += 1
        return self._end - 1

    def widen(self, width: int) -> None:
        """Make room for drafts with so many nodes."""
        slots, known, columns = self.drafted.shape
        if known < width:
            more = np.zeros((slots, width - known, columns), np.int64)
            self.drafted = np.concatenate((self.drafted, more), axis=1)

    def give(self, slot: int) -> None:
        """Take back a slot."""
        self._free.append(slot)


class Part(NamedTuple):
    """A turn that runs by its form.

    Attributes:
        form: The form.
        block: What the form knows of the turn.
        most: The most tokens that a step edits in a row of the logits.
        asks: The most tokens of a question.
        before: How many generated tokens the processor does not see: resumed tokens that are prompt
            to it, and tokens outside of its phase.
    """

    form: Form
    block: ArenaBlock
    most: int
    asks: int
    before: int

    @classmethod
    def of(cls, form: Form, turn: Turn, position: int, limit: int) -> Part | None:
        """Return the part of a turn that has read its history; ``None`` if it has no form now.

        Args:
            form: The form.
            turn: The turn.
            position: Number of generated tokens of the row.
            limit: The most tokens that the row can have, prompt included.
        """
        request = turn.request
        block = form.block(request, limit)
        if block is None:
            return None
        params = request.params
        before = position - request.position
        return cls(form, block, form.most(params), form.asks(params), before)


class Formed:
    """A row whose turns at work run by forms.

    Its processors are not fed meanwhile. What they know follows from the history, so they catch up
    once the row is asked by itself again.

    Attributes:
        parts: The turns.
        watch: The tokens that may open or close the phase of a turn, as bits; ``None`` for none.
        slots: The slots of the batch.
        slot: Its index in ``slots``, which is free again once this object is gone.
    """

    __slots__ = ("parts", "slot", "slots", "watch")

    def __init__(self, parts: Sequence[Part], watch: ArenaBlock | None, slots: Slots) -> None:
        self.parts, self.watch = parts, watch
        self.slots, self.slot = slots, slots.take()

    @property
    def reads_tokens(self) -> bool:
        """Whether the tokens of the row have to be read, and not only counted."""
        return self.watch is not None or any(part.form.reads_tokens for part in self.parts)

    def __del__(self) -> None:
        """Free the slot."""
        self.slots.give(self.slot)

    def leave(self, edit_log: EditLog) -> None:
        """Note that the row leaves, and move what is known of its edits to its edit log."""
        self.slots.left += 1
        numbers = self.slots.numbers[self.slot]
        fed, asked = int(numbers[FED]), int(numbers[ASKED])
        since, until, how = numbers[SINCE:].tolist()
        if until >= 0:
            edit_log.add_run(since, until, forced=how >= FORCED)
        numbers[UNTIL] = numbers[ASKED] = -1
        nodes = self.slots.drafted[self.slot]
        if nodes[:, HOW].any():
            for node, path in _paths(nodes[:, CHILD:HOW].tolist(), nodes[:, DRAFTED].tolist()):
                edits = int(nodes[node, HOW])
                forced: bool | PendingAnswer = edits & FORCED > 0
                if edits & DECIDED and self.slots.answers is not None:
                    is_edited = edits & EDITED > 0
                    forced = PendingAnswer(self.slots.answers, asked + node, is_edited=is_edited)
                elif not edits or not node:
                    continue
                if node:
                    edit_log.add_drafted(fed + len(path), path, forced=forced)
                else:
                    edit_log.add(fed, forced=forced)
            nodes[:, HOW] = 0


def _paths(
    links: Sequence[Sequence[int]], token_ids: Sequence[int]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the nodes of a draft, and the drafted tokens up to each, from node 0 on."""
    left: list[tuple[int, list[int]]] = [(0, [])]
    for _ in token_ids:  # ends, whatever the links say
        if not left:
            break
        node, path = left.pop()
        yield node, path
        child, _ = links[node]
        while child > 0:
            left.append((child, [*path, token_ids[child]]))
            child = links[child][1]


@compiled()
def _note(  # noqa: PLR0913, PLR0917 - compiled into its callers
    numbers: Any, slot: Any, position: Any, how: Any, place: Any, ended: Any, count: Any
) -> Any:
    """Add a position to the run of a row, or begin another; return the number of ended runs."""
    if numbers[slot, UNTIL] == position and numbers[slot, RUN] == how:
        numbers[slot, UNTIL] = position + 1
        return count
    if numbers[slot, UNTIL] >= 0:
        ended[count, 0] = place
        ended[count, 1:] = numbers[slot, SINCE:]
        count += 1
    numbers[slot, SINCE] = position
    numbers[slot, UNTIL] = position + 1
    numbers[slot, RUN] = how
    return count


@compiled(
    "int64(int64[:,::1], int64[:,:,::1], int64[::1], uint8[::1], int64[:,::1], int64[::1],"
    " int64[:,:,::1], int64, int64[:,::1])"
)
def log_step(  # noqa: PLR0913, PLR0917 - one compiled call
    numbers: Any,
    drafted: Any,
    slots: Any,
    edited: Any,
    visits: Any,
    first: Any,
    trees: Any,
    width: Any,
    ended: Any,
) -> int:
    """Note the edits of a step; return the number of runs that ended.

    Args:
        numbers: ``Slots.numbers``.
        drafted: ``Slots.drafted``.
        slots: For each row its slot.
        edited: For each visit how it was edited: ``Out.edited``.
        visits: ``Visits.numbers``.
        first: ``Visits.first``.
        trees: The drafts of the rows, as for :func:`~sglang_lp._engine.forms.walk.walk`.
        width: Nodes of each draft.
        ended: Gets the runs that ended, shape ``(runs, 4)``: place of the row, first position,
            position after the last, and bits of ``Out.edited``.
    """
    count = 0
    for place in range(len(slots)):
        slot = slots[place]
        for node in range(width):
            for column in range(HOW):
                drafted[slot, node, column] = trees[place, node, column]
            drafted[slot, node, HOW] = 0
        for visit in range(first[place], first[place + 1]):
            row, how = visits[visit, ROW], np.int64(edited[visit])
            if row < 0 or not how:
                continue
            drafted[slot, row % width, HOW] = how
            if how & DECIDED:
                numbers[slot, ASKED] = row - row % width
            elif visits[visit, DEPTH] == 0:
                position = numbers[slot, FED]
                count = _note(numbers, slot, position, how, place, ended, count)
    return count


@compiled("int64(int64[:,::1], int64[:,:,::1], int64[::1], boolean[::1], int64[:,::1])")
def log_answers(numbers: Any, drafted: Any, slots: Any, answers: Any, ended: Any) -> int:
    """Note what the device has decided; return the number of runs that ended.

    Args:
        numbers: ``Slots.numbers``.
        drafted: ``Slots.drafted``.
        slots: For each row of the step with the questions, its slot.
        answers: For each row of the logits whether its token was forced; empty for none.
        ended: As for :func:`log_step`.
    """
    count = 0
    for place in range(len(slots)):
        slot = slots[place]
        asked = numbers[slot, ASKED]
        if asked < 0:
            continue
        numbers[slot, ASKED] = -1
        for node in range(drafted.shape[1]):
            how = drafted[slot, node, HOW]
            if not how & DECIDED:
                continue
            row = asked + node
            how = FORCED if row < len(answers) and answers[row] else how & EDITED
            drafted[slot, node, HOW] = how
            if how and not node:
                count = _note(numbers, slot, numbers[slot, FED], how, place, ended, count)
    return count


@compiled("int64(int64[:,::1], int64[:,:,::1], int64[::1], int64[::1], int64[::1], int64[:,::1])")
def log_accepted(  # noqa: PLR0913, PLR0917 - one compiled call
    numbers: Any, drafted: Any, slots: Any, new: Any, since: Any, ended: Any
) -> int:
    """Note the edits at drafted tokens that were accepted; return the number of runs that ended.

    Args:
        numbers: ``Slots.numbers``.
        drafted: ``Slots.drafted``.
        slots: For each row its slot.
        new: The tokens that rows got, row after row.
        since: Where the tokens of each row begin, and their number.
        ended: As for :func:`log_step`; the runs of one row follow each other.
    """
    count = 0
    for place in range(len(slots)):
        slot, node = slots[place], np.int64(0)
        position = numbers[slot, FED]
        for which in range(since[place], since[place + 1] - 1):
            position += 1
            node = drafted[slot, node, CHILD]
            while node > 0 and drafted[slot, node, DRAFTED] != new[which]:
                node = drafted[slot, node, NEXT]
            if node <= 0:
                break
            how = drafted[slot, node, HOW]
            if how:
                count = _note(numbers, slot, position, how, place, ended, count)
    return count
