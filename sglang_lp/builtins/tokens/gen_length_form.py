"""The form of the rule for the length of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.builtins.tokens.gen_length import UNIT
from sglang_lp.edits import MAX_BIAS
from sglang_lp.forms.arena import Arena
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import POSITION, ROW, TOKEN, EditKind, Form
from sglang_lp.forms.out import ASKS, BIAS, EDITED, LACKS

if TYPE_CHECKING:
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Group, Visits
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request

#: Numbers of a block: offset of the tokens and how many, offset of the growth.
_TOKENS, _MANY, _GROWTH = range(3)
#: A growth: the bias, the power, and the power of the length that has the bias.
_BIAS, _POWER, _UNIT = range(3)
#: Largest power for which powers of positions are exact as float64.
_MOST_POWER = 3


@compiled()
def _value_of(growths: Any, growth: Any, position: Any) -> Any:
    """Return the bias at a position."""
    power = 1.0
    for _ in range(np.int64(growths[growth + _POWER])):
        power *= position
    value = growths[growth + _BIAS] * power / growths[growth + _UNIT]
    return max(-MAX_BIAS, min(MAX_BIAS, value))


@compiled(
    "void(int32[::1], float64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:,::1],"
    " int64, int64[::1], float64[::1], int64[::1], uint8[::1])"
)
def _step(
    numbers: Any,
    growths: Any,
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
    """Bias the tokens of each row; a row that has written one of them is asked."""
    end = counts[BIAS]
    for row in range(len(blocks)):
        block, place = blocks[row], at[row]
        many, tokens = np.int64(numbers[block + _MANY]), np.int64(numbers[block + _TOKENS])
        growth = np.int64(numbers[block + _GROWTH])
        for visit in range(first[place], first[place + 1]):
            if end + many > len(bias):
                counts[LACKS] = 1
                break
            for which in range(many):
                if numbers[tokens + which] == visits[visit, TOKEN]:
                    edited[visit] |= ASKS
            if edited[visit] & ASKS:
                break
            if visits[visit, ROW] < 0:
                continue
            value = _value_of(growths, growth, visits[visit, POSITION] - unseen[row])
            if value == 0.0:
                continue
            base = visits[visit, ROW] * stride
            for which in range(many):
                bias[end], values[end] = base + numbers[tokens + which], value
                end += 1
            edited[visit] |= EDITED
    counts[BIAS] = end


class GenLengthForm(Form):
    """Rows of biases that grow with the answer."""

    edits = EditKind.BIASES

    def __init__(self) -> None:
        super().__init__()
        self._growths = Arena(np.float64)

    def fits(self, params: Any, vocab_size: int) -> bool:  # noqa: ARG002 - ids are of the vocabulary
        return not params.complete_sentences and params.power <= _MOST_POWER

    def most(self, params: Any) -> int:
        return len(params.eos_token_ids)

    def block(self, request: Request, limit: int) -> ArenaBlock | None:  # noqa: ARG002 - it is a position
        params = request.params
        ids = params.eos_token_ids
        tokens = self.arena.share(ids, lambda: ids)
        growth = params.bias, params.power, UNIT**params.power
        numbers = self._growths.share(growth, lambda: growth)
        block = self.arena.take(3, (tokens, numbers))
        self.arena.of(block)[:] = tokens.at, len(ids), numbers.at
        return block

    def step(self, group: Group, visits: Visits, out: Out) -> None:
        _step(
            self.arena.numbers,
            self._growths.numbers,
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
