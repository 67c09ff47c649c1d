"""The form of the loop breaker, for patterns that repeat exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.builtins.repetition.loop_breaker import Action, enough
from sglang_lp.builtins.repetition.tail_form import (
    fits,
    push,
    read_of,
    runs_of,
    size_of,
    tokens_of,
    write,
)
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import EditKind, Form
from sglang_lp.forms.out import ASKS, BAN, EDITED, LACKS

if TYPE_CHECKING:
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Group, Seen
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request

#: Numbers of a block: distances, whether a loop is banned, offset of the tokens that make a loop
#: at each distance. Then the tail.
_REACH, _BANS, _ENOUGH = range(3)
_TAIL = 3
#: No text has so many tokens; twice as many are int32.
_NEVER = (1 << 30) - 1


@compiled(
    "int64(int32[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64,"
    " int64[:,::1], int64, int64[::1], int64[::1], uint8[::1])"
)
def _step(
    numbers: Any,
    blocks: Any,
    at: Any,
    tokens: Any,
    rows: Any,
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
    end = counts[BAN]
    for row in range(len(blocks)):
        block, place = blocks[row], at[row]
        reach = np.int64(numbers[block + _REACH])
        if end + reach > len(ban):
            counts[LACKS] = 1
            break
        push(numbers, block + _TAIL, reach, tokens[place])
        since = runs_of(numbers, block + _TAIL, reach)
        first = np.int64(numbers[block + _ENOUGH])
        enough = numbers[first : first + reach]
        read = np.int32(read_of(numbers, block + _TAIL))
        reached = np.int32(0)
        for distance in range(reach):  # without a branch, as in push
            reached |= np.int32(np.int32(since[distance] + enough[distance]) <= read)
        if not reached:
            continue
        if not numbers[block + _BANS]:
            edited[place] |= ASKS
            continue
        mark += 1
        following = tokens_of(numbers, block + _TAIL, reach)
        for distance in range(reach):
            token_id = np.int64(following[distance])
            if since[distance] + enough[distance] > read or not 0 <= token_id < vocab_size:
                continue
            if marks[token_id, 0] != mark:
                marks[token_id, 0] = mark
                ban[end] = rows[place] * stride + token_id
                end += 1
        edited[place] |= EDITED
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

    def step(self, group: Group, seen: Seen, out: Out) -> None:
        out.mark = _step(
            self.arena.numbers,
            group.blocks,
            group.at,
            seen.tokens,
            seen.rows,
            seen.stride,
            seen.vocab_size,
            out.marks,
            out.mark,
            out.ban,
            out.counts,
            out.edited,
        )
