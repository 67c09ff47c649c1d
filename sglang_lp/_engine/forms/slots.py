"""Slots: what the engine knows of each row that runs by a form, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sglang_lp.forms.compiled import compiled

if TYPE_CHECKING:
    from sglang_lp._engine.history.edit_log import EditLog
    from sglang_lp._engine.turns.turn import Turn
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Form

__all__ = ["Formed", "Part", "Slots"]

#: Columns: number of generated tokens that were fed, the newest of them, resumed ones among them;
#: the position at which the row has to be asked by itself; then the run of edited positions: first,
#: after the last (-1 for none), and how it was edited.
POSITION, LAST, RESUMED, WAKE, SINCE, UNTIL, HOW = range(7)
_COLUMNS = 7
#: The newest token of a row whose form reads no tokens.
UNKNOWN = -1


class Slots:
    """Numbers of all rows with a form.

    Attributes:
        numbers: Shape ``(slots, columns)``, int64.
        left: How often a row has left its form.
    """

    def __init__(self) -> None:
        self.left = 0
        self.numbers: Any = np.zeros((16, _COLUMNS), np.int64)
        self._free: list[int] = []
        self._end = 0

    def take(self) -> int:
        """Return a free slot."""
        if self._free:
            return self._free.pop()
        if self._end == len(self.numbers):
            self.numbers = np.concatenate((self.numbers, np.zeros_like(self.numbers)))
        self._end += 1
        return self._end - 1

    def give(self, slot: int) -> None:
        """Take back a slot."""
        self._free.append(slot)


class Part(NamedTuple):
    """A turn that runs by its form.

    Attributes:
        form: The form.
        block: What the form knows of the turn.
        most: The most tokens that a step edits.
    """

    form: Form
    block: ArenaBlock
    most: int

    @classmethod
    def of(cls, form: Form, turn: Turn, limit: int) -> Part | None:
        """Return the part of a turn that has read its history; ``None`` if it does not fit.

        Args:
            form: The form.
            turn: The turn.
            limit: The most tokens that the row can have, its prompt among them.
        """
        request = turn.request
        block = form.block(request, limit)
        return None if block is None else cls(form, block, form.most(request.params))


class Formed:
    """A row whose turns at work run by forms.

    Its processors are not fed meanwhile. What they know follows from the history, so they catch up
    once the row is asked by itself again.

    Attributes:
        parts: The turns.
        slot: Its place in ``slots``.
    """

    __slots__ = ("parts", "slot", "slots")

    def __init__(self, parts: Sequence[Part], slots: Slots) -> None:
        self.parts = parts
        self.slots, self.slot = slots, slots.take()

    @property
    def reads_tokens(self) -> bool:
        """Whether any of the forms reads tokens."""
        return any(part.form.reads_tokens for part in self.parts)

    def __del__(self) -> None:
        """Free the slot."""
        self.slots.give(self.slot)

    def leave(self, edit_log: EditLog) -> None:
        """Note that the row leaves, and move its run of edited positions to its edit log."""
        self.slots.left += 1
        numbers = self.slots.numbers[self.slot]
        since, until, how = numbers[SINCE:].tolist()
        if until >= 0:
            edit_log.add_run(since, until, forced=how > 1)
            numbers[UNTIL] = -1


@compiled("int64(int64[:,::1], int64[::1], uint8[::1], int64[:,::1])")
def log_step(numbers: Any, slots: Any, edited: Any, ended: Any) -> int:
    """Note the edits of a step; return the number of runs that ended.

    Args:
        numbers: Of :class:`Slots`.
        slots: For each row its slot.
        edited: For each row how it was edited, as in :class:`~sglang_lp.forms.out.Out`.
        ended: Gets the runs that ended: place of the row, first position, position after the last,
            and how it was edited.
    """
    count = 0
    for place in range(len(slots)):
        how = np.int64(edited[place])
        if how == 0:
            continue
        slot = slots[place]
        position = numbers[slot, POSITION]
        if numbers[slot, UNTIL] == position and numbers[slot, HOW] == how:
            numbers[slot, UNTIL] = position + 1
            continue
        if numbers[slot, UNTIL] >= 0:
            ended[count, 0] = place
            ended[count, 1:] = numbers[slot, SINCE:]
            count += 1
        numbers[slot, SINCE] = position
        numbers[slot, UNTIL] = position + 1
        numbers[slot, HOW] = how
    return count
