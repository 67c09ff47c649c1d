"""The form of :class:`~sglang_lp.builtins.repetition.dry.DRYLogitProcessor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.builtins.repetition.dry import penalties_of
from sglang_lp.builtins.repetition.tail_form import (
    enter,
    fits,
    put_back,
    read_of,
    runs_of,
    saved_size,
    size_of,
    tokens_of,
    write,
)
from sglang_lp.forms.arena import Arena
from sglang_lp.forms.bits import bits_of, has_bit
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import ROW, TOKEN, EditKind, Form
from sglang_lp.forms.out import BIAS, EDITED, LACKS

if TYPE_CHECKING:
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Group, Visits
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request

#: Numbers of a block: tokens since the last breaker, allowed length, window, offset of the breakers
#: and how many, offset of the penalties. Then the tail.
_UNBROKEN, _ALLOWED, _WINDOW, _BREAKS, _MANY, _PENALTIES = range(6)
_TAIL = 6
#: Distances that are compared before the first of them is looked at.
_PIECE = 64


@compiled()
def _reach_of(numbers: Any, block: Any) -> Any:
    """Return the number of distances of a row."""
    return np.int64(numbers[block + _WINDOW]) - np.int64(numbers[block + _ALLOWED])


@compiled()
def _count(numbers: Any, block: Any, token_id: Any, before: Any) -> Any:
    """Return the tokens since the last breaker, with a token after so many."""
    breaks, many = numbers[block + _BREAKS], numbers[block + _MANY]
    return 0 if has_bit(numbers, breaks, many, token_id) else before + 1


@compiled()
def _penalise(
    numbers: Any,
    block: Any,
    unbroken: Any,
    penalties: Any,
    base: Any,
    vocab_size: Any,
    marks: Any,
    mark: Any,
    bias: Any,
    values: Any,
    end: Any,
) -> Any:
    """Append the biases of a row; return the number of all biases."""
    window, allowed = np.int64(numbers[block + _WINDOW]), np.int64(numbers[block + _ALLOWED])
    reach = window - allowed
    read = read_of(numbers, block + _TAIL)
    if unbroken < allowed:
        return end
    tokens = tokens_of(numbers, block + _TAIL, reach)
    since = runs_of(numbers, block + _TAIL, reach)
    table = np.int64(numbers[block + _PENALTIES])
    breaks, many = numbers[block + _BREAKS], numbers[block + _MANY]
    enough = np.int32(read - allowed)
    for low in range(0, reach, _PIECE):
        piece = since[low : low + _PIECE]
        reached = np.int32(0)
        for place in range(len(piece)):
            reached |= np.int32(piece[place] <= enough)
        if not reached:
            continue
        for place in range(low, low + len(piece)):
            token_id = np.int64(tokens[place])
            if since[place] > enough or token_id < 0 or token_id >= vocab_size:
                continue
            length = min(read - since[place], window - 1 - place, unbroken)
            value = penalties[table + length]
            if marks[token_id, 0] == mark:
                known = marks[token_id, 1]
                values[known] = min(values[known], value)
            elif not has_bit(numbers, breaks, many, token_id):
                marks[token_id, 0], marks[token_id, 1] = mark, end
                bias[end], values[end] = base + token_id, value
                end += 1
    return end


@compiled(
    "int64(int32[::1], float64[::1], int64[::1], int64[::1], int64[::1], int64[:,::1], int64,"
    " int64, int64, int64[:,::1], int64, int64[::1], float64[::1], int64[::1], uint8[::1])"
)
def _step(
    numbers: Any,
    penalties: Any,
    blocks: Any,
    at: Any,
    first: Any,
    visits: Any,
    deepest: Any,
    stride: Any,
    vocab_size: Any,
    marks: Any,
    mark: Any,
    bias: Any,
    values: Any,
    counts: Any,
    edited: Any,
) -> Any:
    """Feed and edit all rows; return the mark of the last."""
    end, size = counts[BIAS], np.int64(0)
    for block in blocks:
        size = max(size, saved_size(_reach_of(numbers, block)))
    saved, unbroken = np.empty(size * deepest, np.int32), np.zeros(deepest + 1, np.int64)
    for row in range(len(blocks)):
        block, place, depth = blocks[row], at[row], np.int64(0)
        reach, unbroken[0] = _reach_of(numbers, block), numbers[block + _UNBROKEN]
        for visit in range(first[place], first[place + 1]):
            if end + numbers[block + _WINDOW] > len(bias):
                counts[LACKS] = 1
                break
            depth = enter(numbers, block + _TAIL, reach, visits[visit], depth, deepest, saved)
            before = unbroken[max(depth - 1, 0)]
            unbroken[depth] = _count(numbers, block, visits[visit, TOKEN], before)
            if visits[visit, ROW] < 0:
                continue
            mark, begin = mark + 1, end
            end = _penalise(
                numbers,
                block,
                unbroken[depth],
                penalties,
                visits[visit, ROW] * stride,
                vocab_size,
                marks,
                mark,
                bias,
                values,
                end,
            )
            if end > begin:
                edited[visit] |= EDITED
        numbers[block + _UNBROKEN] = unbroken[0]
        if depth:
            put_back(numbers, block + _TAIL, reach, saved, 0)
    counts[BIAS] = end
    return mark


class DryForm(Form):
    """Rows of DRY."""

    edits = EditKind.BIASES

    def __init__(self) -> None:
        super().__init__()
        self._penalties = Arena(np.float64)

    def fits(self, params: Any, vocab_size: int) -> bool:  # noqa: ARG002 - every row does
        return True

    def most(self, params: Any) -> int:
        window: int = params.dry_penalty_last_n
        return window

    def block(self, request: Request, limit: int) -> ArenaBlock | None:  # noqa: ARG002 - a window is as long
        params, known = request.params, request.state
        window, allowed = params.dry_penalty_last_n, params.dry_allowed_length
        breakers = params.dry_sequence_breaker_ids
        breaks = self.arena.share(breakers, lambda: bits_of(breakers))
        key = params.dry_multiplier, params.dry_base, allowed, window
        table = self._penalties.share(key, lambda: penalties_of(*key))
        reach = window - allowed
        tail = known.tail
        if not fits(tail):
            return None
        block = self.arena.take(_TAIL + size_of(reach), (breaks, table))
        numbers = self.arena.of(block)
        numbers[:_TAIL] = known.unbroken, allowed, window, breaks.at, breaks.size, table.at
        write(numbers[_TAIL:], tail)
        return block

    def step(self, group: Group, visits: Visits, out: Out) -> None:
        out.mark = _step(
            self.arena.numbers,
            self._penalties.numbers,
            group.blocks,
            group.at,
            *visits,
            out.marks,
            out.mark,
            out.bias,
            out.values,
            out.counts,
            out.edited,
        )
