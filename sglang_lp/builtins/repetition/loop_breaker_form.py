"""The form of the loop breaker, for patterns that repeat exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.builtins.repetition.loop_breaker import Action, enough
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
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import ROW, EditKind, Form
from sglang_lp.forms.out import ASKS, BAN, EDITED, LACKS

if TYPE_CHECKING:
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Group, Visits
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request

#: Numbers of a block: distances, whether a loop is banned, offset of the tokens that make a loop
#: at each distance. Then the tail.
_REACH, _BANS, _ENOUGH = range(3)
_TAIL = 3
#: No text has so many tokens; twice as many are int32.
_NEVER = (1 << 30) - 1


@compiled()
def _loops(numbers: Any, block: Any, reach: Any) -> bool:
    """Tell whether the text repeats itself often enough at any distance."""
    since, read = runs_of(numbers, block + _TAIL, reach), read_of(numbers, block + _TAIL)
    needed = np.int64(numbers[block + _ENOUGH])
    enough, most = numbers[needed : needed + reach], np.int32(read)
    reached = np.int32(0)
    for distance in range(reach):  # without a branch, as where a token is appended
        reached |= np.int32(np.int32(since[distance] + enough[distance]) <= most)
    return bool(reached)


@compiled()
def _ban(
    numbers: Any,
    block: Any,
    reach: Any,
    base: Any,
    vocab_size: Any,
    marks: Any,
    mark: Any,
    ban: Any,
    end: Any,
) -> Any:
    """Ban each token once that would continue a loop; return the number of all bans."""
    since, read = runs_of(numbers, block + _TAIL, reach), read_of(numbers, block + _TAIL)
    following = tokens_of(numbers, block + _TAIL, reach)
    needed = np.int64(numbers[block + _ENOUGH])
    for distance in range(reach):
        token_id = np.int64(following[distance])
        enough = numbers[needed + distance]
        if since[distance] + enough > read or not 0 <= token_id < vocab_size:
            continue
        if marks[token_id, 0] != mark:
            marks[token_id, 0] = mark
            ban[end] = base + token_id
            end += 1
    return end


@compiled(
    "int64(int32[::1], int64[::1], int64[::1], int64[::1], int64[:,::1], int64, int64, int64,"
    " int64[:,::1], int64, int64[::1], int64[::1], uint8[::1])"
)
def _step(
    numbers: Any,
    blocks: Any,
    at: Any,
    first: Any,
    visits: Any,
    deepest: Any,
    stride: Any,
    vocab_size: Any,
    marks: Any,
    mark: Any,
    ban: Any,
    counts: Any,
    edited: Any,
) -> Any:
    """Feed all rows, and ban what would continue a loop; return the mark of the last row.

    A row that ends with its loop is asked.
    """
    end, size = counts[BAN], np.int64(0)
    for block in blocks:
        size = max(size, saved_size(np.int64(numbers[block + _REACH])))
    saved = np.empty(size * deepest, np.int32)
    for row in range(len(blocks)):
        block, place, depth = blocks[row], at[row], np.int64(0)
        reach = np.int64(numbers[block + _REACH])
        for visit in range(first[place], first[place + 1]):
            if end + reach > len(ban):
                counts[LACKS] = 1
                break
            depth = enter(numbers, block + _TAIL, reach, visits[visit], depth, deepest, saved)
            if visits[visit, ROW] < 0 or not _loops(numbers, block, reach):
                continue
            if not numbers[block + _BANS]:
                edited[visit] |= ASKS
                break
            mark += 1
            base = visits[visit, ROW] * stride
            end = _ban(numbers, block, reach, base, vocab_size, marks, mark, ban, end)
            edited[visit] |= EDITED
        if depth:
            put_back(numbers, block + _TAIL, reach, saved, 0)
    counts[BAN] = end
    return mark


class LoopBreakerForm(Form):
    """Rows of loop breakers."""

    edits = EditKind.BANS
    naps = True

    def fits(self, params: Any, vocab_size: int) -> bool:
        return params.min_new_share is None and params.max_pattern_size < vocab_size

    def most(self, params: Any) -> int:
        size: int = params.max_pattern_size
        return size

    def block(self, request: Request, limit: int) -> ArenaBlock | None:  # noqa: ARG002 - a tail is as long
        params, tail = request.params, request.state.tail
        if not fits(tail):
            return None
        key = params.max_pattern_size, params.min_pattern_size, params.min_count
        needed = self.arena.share(key, lambda: np.minimum(enough(*key), _NEVER))
        reach = params.max_pattern_size
        block = self.arena.take(_TAIL + size_of(reach), (needed,))
        numbers = self.arena.of(block)
        numbers[:_TAIL] = reach, params.action is Action.BAN, needed.at
        write(numbers[_TAIL:], tail)
        return block

    def step(self, group: Group, visits: Visits, out: Out) -> None:
        out.mark = _step(
            self.arena.numbers,
            group.blocks,
            group.at,
            *visits,
            out.marks,
            out.mark,
            out.ban,
            out.counts,
            out.edited,
        )
