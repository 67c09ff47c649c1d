"""Slots: what the engine knows of each row that runs by a form, in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sglang_lp._engine.apply.answers import Answers, PendingAnswer
from sglang_lp.forms.arena import Arena
from sglang_lp.forms.bits import has_bit
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.out import DECIDED, EDITED, FORCED

if TYPE_CHECKING:
    from sglang_lp._engine.history.edit_log import EditLog
    from sglang_lp._engine.turns.turn import Turn
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Form

__all__ = ["Formed", "Part", "Slots"]

#: Columns: number of generated tokens that were fed, the newest of them, resumed ones among them;
#: the position at which the row has to be asked by itself; the row of the logits in which the
#: device decides whether the token at the newest position is forced (-1 for none), and the bits of
#: its other edits; then the run of edited positions: first, after the last (-1 for none), and bits.
POSITION, LAST, RESUMED, WAKE, ASKED, ELSE, SINCE, UNTIL, HOW = range(9)
_COLUMNS = 9
#: The newest token of a row whose form reads no tokens.
UNKNOWN = -1


class Slots:
    """Numbers of all rows with a form.

    Attributes:
        numbers: Shape ``(slots, columns)``, int64.
        watched: The bits of watched tokens.
        left: How often a row has left its form.
        answers: The device's answers to the newest questions, until they are read.
    """

    def __init__(self) -> None:
        self.watched = Arena(np.int32)
        self.left = 0
        self.answers: Answers | None = None
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
        asks: The most tokens of a question.
        before: How many generated tokens the processor does not see.
    """

    form: Form
    block: ArenaBlock
    most: int
    asks: int
    before: int

    @classmethod
    def of(cls, form: Form, turn: Turn, position: int, limit: int) -> Part | None:
        """Return the part of a turn that has read its history; ``None`` if it does not fit.

        Args:
            form: The form.
            turn: The turn.
            position: Of the row.
            limit: The most tokens that the row can have, its prompt among them.
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
        slot: Its place in ``slots``.
    """

    __slots__ = ("parts", "slot", "slots", "watch")

    def __init__(self, parts: Sequence[Part], watch: ArenaBlock | None, slots: Slots) -> None:
        self.parts, self.watch = parts, watch
        self.slots, self.slot = slots, slots.take()

    @property
    def reads_tokens(self) -> bool:
        """Whether the row reads tokens."""
        return self.watch is not None or any(part.form.reads_tokens for part in self.parts)

    def __del__(self) -> None:
        """Free the slot."""
        self.slots.give(self.slot)

    def leave(self, edit_log: EditLog) -> None:
        """Note that the row leaves, and move its run of edited positions to its edit log."""
        self.slots.left += 1
        numbers = self.slots.numbers[self.slot]
        asked, otherwise, since, until, how = numbers[ASKED:].tolist()
        if until >= 0:
            edit_log.add_run(since, until, forced=how >= FORCED)
            numbers[UNTIL] = -1
        if asked >= 0 and self.slots.answers is not None:
            answer = PendingAnswer(self.slots.answers, asked, is_edited=otherwise > 0)
            edit_log.add(int(numbers[POSITION]), forced=answer)
            numbers[ASKED] = -1


@compiled()
def _note(  # noqa: PLR0913, PLR0917 - compiled into its callers
    numbers: Any, slot: Any, how: Any, place: Any, ended: Any, count: Any
) -> Any:
    """Note the edits of the newest position of a row; return the number of runs that ended."""
    position = numbers[slot, POSITION]
    if numbers[slot, UNTIL] == position and numbers[slot, HOW] == how:
        numbers[slot, UNTIL] = position + 1
        return count
    if numbers[slot, UNTIL] >= 0:
        ended[count, 0] = place
        ended[count, 1:] = numbers[slot, SINCE:]
        count += 1
    numbers[slot, SINCE] = position
    numbers[slot, UNTIL] = position + 1
    numbers[slot, HOW] = how
    return count


@compiled("int64(int64[:,::1], int64[::1], uint8[::1], int64[::1], int64[:,::1])")
def log_step(numbers: Any, slots: Any, edited: Any, rows: Any, ended: Any) -> int:
    """Note the edits of a step; return the number of runs that ended.

    Args:
        numbers: Of :class:`Slots`.
        slots: For each row its slot.
        edited: For each row how it was edited, as in :class:`~sglang_lp.forms.out.Out`.
        rows: For each row its row of the logits.
        ended: Gets the runs that ended: place of the row, first position, position after the last,
            and how it was edited.
    """
    count = 0
    for place in range(len(slots)):
        how, slot = np.int64(edited[place]), slots[place]
        if how & DECIDED:
            numbers[slot, ASKED], numbers[slot, ELSE] = rows[place], how & EDITED
        elif how:
            count = _note(numbers, slot, how, place, ended, count)
    return count


@compiled("int64(int64[:,::1], int64[::1], boolean[::1], int64[:,::1])")
def log_answers(numbers: Any, slots: Any, answers: Any, ended: Any) -> int:
    """Note what the device has decided; return the number of runs that ended.

    Args:
        numbers: As for :func:`log_step`, like ``slots`` and ``ended``.
        slots: As there.
        answers: For each row of the logits whether its token was forced; empty for none.
        ended: As there.
    """
    count = 0
    for place in range(len(slots)):
        slot = slots[place]
        asked = numbers[slot, ASKED]
        if asked < 0:
            continue
        numbers[slot, ASKED] = -1
        how = FORCED if asked < len(answers) and answers[asked] else numbers[slot, ELSE]
        if how:
            count = _note(numbers, slot, how, place, ended, count)
    return count


@compiled("void(int32[::1], int64[:,::1], int64[::1], boolean[::1])")
def find_watched(bits: Any, watching: Any, tokens: Any, found: Any) -> None:
    """Mark the rows that got a token that they watch for.

    Args:
        bits: Sets of tokens.
        watching: For each row that watches its place, and offset and size of its set.
        tokens: For each row its token.
        found: For each row; becomes true.
    """
    for which in range(len(watching)):
        place = watching[which, 0]
        if has_bit(bits, watching[which, 1], watching[which, 2], tokens[place]):
            found[place] = True
