"""The form of a forced sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import FEWEST_STEPS, POSITION, ROW, EditKind, Form
from sglang_lp.forms.out import ASKS, FORCE, FORCED, LACKS

if TYPE_CHECKING:
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Group, Visits
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request

#: Numbers of a block: offset of the sequence, its length, and the token after it, -1 for none.
_SEQUENCE, _LENGTH, _AFTER = range(3)


@compiled(
    "void(int32[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:,::1], int64,"
    " int64[::1], int64[::1], int64[::1], uint8[::1])"
)
def _step(
    numbers: Any,
    blocks: Any,
    at: Any,
    unseen: Any,
    first: Any,
    visits: Any,
    stride: Any,
    fill: Any,
    force: Any,
    counts: Any,
    edited: Any,
) -> None:
    """Force the token of each row; the end of a sequence without a token after it is asked for."""
    end = counts[FORCE]
    for row in range(len(blocks)):
        block, place = blocks[row], at[row]
        for visit in range(first[place], first[place + 1]):
            at_row = visits[visit, ROW]
            if at_row < 0:
                continue
            if end >= len(force):
                counts[LACKS] = 1
                break
            position = visits[visit, POSITION] - unseen[row]
            if position < numbers[block + _LENGTH]:
                token_id = np.int64(numbers[numbers[block + _SEQUENCE] + position])
            else:
                token_id = np.int64(numbers[block + _AFTER])
            if token_id < 0:
                edited[visit] |= ASKS
                break
            fill[end], force[end] = at_row, at_row * stride + token_id
            end += 1
            edited[visit] |= FORCED
    counts[FORCE] = end


class ForcedSequenceForm(Form):
    """Rows of forced sequences."""

    edits = EditKind.FORCES
    reads_tokens = False

    def fits(self, params: Any, vocab_size: int) -> bool:  # noqa: ARG002 - ids are of the vocabulary
        return params.eos_token_ids is None or len(params.eos_token_ids) == 1

    def most(self, params: Any) -> int:  # noqa: ARG002 - it is the same everywhere
        return 1

    def block(self, request: Request, limit: int) -> ArenaBlock | None:  # noqa: ARG002 - it is a position
        params = request.params
        if len(params.token_ids) < request.position + FEWEST_STEPS:
            return None
        shared = self.arena.share(params.token_ids, lambda: params.token_ids)
        after = -1 if params.eos_token_ids is None else params.eos_token_ids[0]
        block = self.arena.take(3, (shared,))
        self.arena.of(block)[:] = shared.at, len(params.token_ids), after
        return block

    def step(self, group: Group, visits: Visits, out: Out) -> None:
        _step(
            self.arena.numbers,
            group.blocks,
            group.at,
            group.before,
            visits.first,
            visits.numbers,
            visits.stride,
            out.fill,
            out.force,
            out.counts,
            out.edited,
        )
