"""The form of a scheduled bias that changes from token to token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.forms.arena import Arena
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import POSITION, ROW, EditKind, Form
from sglang_lp.forms.out import ASKS, BIAS, EDITED, LACKS

if TYPE_CHECKING:
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Group, Visits
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request

#: Numbers of a block: offset of the tokens and how many, offset of the schedule.
_TOKENS, _MANY, _SCHEDULE = range(3)
#: A schedule: first position, position after the last, and the biases at the first and the last.
_FIRST, _AFTER, _LOW, _HIGH = range(4)


@compiled(
    "void(int32[::1], float64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:,::1],"
    " int64, int64[::1], float64[::1], int64[::1], uint8[::1])"
)
def _step(
    numbers: Any,
    schedules: Any,
    blocks: Any,
    at: Any,
    unseen: Any,
    first: Any,
    visits: Any,
    stride: Any,
    bias: Any,
    values: Any,
    counts: Any,
    edited: Any,
) -> None:
    """Bias the tokens of each row; a row outside of its schedule is asked."""
    end = counts[BIAS]
    for row in range(len(blocks)):
        block, place = blocks[row], at[row]
        many, tokens = np.int64(numbers[block + _MANY]), np.int64(numbers[block + _TOKENS])
        schedule = np.int64(numbers[block + _SCHEDULE])
        begin, after = schedules[schedule + _FIRST], schedules[schedule + _AFTER]
        low, high = schedules[schedule + _LOW], schedules[schedule + _HIGH]
        for visit in range(first[place], first[place + 1]):
            if visits[visit, ROW] < 0:
                continue
            if end + many > len(bias):
                counts[LACKS] = 1
                break
            position = np.float64(visits[visit, POSITION] - unseen[row])
            if position < begin or position >= after:
                edited[visit] |= ASKS
                break
            value = low + (high - low) * (position - begin) / (after - 1 - begin)
            if value == 0.0:
                continue
            base = visits[visit, ROW] * stride
            for which in range(many):
                bias[end], values[end] = base + numbers[tokens + which], value
                end += 1
            edited[visit] |= EDITED
    counts[BIAS] = end


class ScheduledBiasForm(Form):
    """Rows of biases that change from token to token."""

    edits = EditKind.BIASES
    reads_tokens = False

    def __init__(self) -> None:
        super().__init__()
        self._schedules = Arena(np.float64)

    def fits(self, params: Any, vocab_size: int) -> bool:  # noqa: ARG002 - ids are of the vocabulary
        return params.final_bias is not None and params.end - params.start > 1

    def most(self, params: Any) -> int:
        return len(params.token_ids)

    def block(self, request: Request, limit: int) -> ArenaBlock | None:  # noqa: ARG002 - it is a position
        params = request.params
        ids = params.token_ids
        tokens = self.arena.share(ids, lambda: ids)
        schedule = params.start, params.end, params.bias, params.final_bias
        numbers = self._schedules.share(schedule, lambda: schedule)
        block = self.arena.take(3, (tokens, numbers))
        self.arena.of(block)[:] = tokens.at, len(ids), numbers.at
        return block

    def step(self, group: Group, visits: Visits, out: Out) -> None:
        _step(
            self.arena.numbers,
            self._schedules.numbers,
            group.blocks,
            group.at,
            group.before,
            visits.first,
            visits.numbers,
            visits.stride,
            out.bias,
            out.values,
            out.counts,
            out.edited,
        )
