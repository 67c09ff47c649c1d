"""The form of bad words that are sequences of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import DEPTH, ROW, TOKEN, EditKind, Form
from sglang_lp.forms.out import BAN, EDITED, LACKS

if TYPE_CHECKING:
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Group, Visits
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request
    from sglang_lp.text.automaton import Automaton

#: Numbers of a block: the state, and the offset of the automaton.
_STATE, _SEQUENCES = range(2)
#: The automaton: number of states and of edges, and the most tokens that a state bans. Then for
#: each state the first of its edges, for each edge its token (ascending in a state) and the next
#: state, for each state the next shorter one and the first of its bans; then the bans.
_STATES, _EDGES, _MOST = range(3)
_HEAD = 3


@compiled()
def _follow(numbers: Any, sequences: Any, state: Any, token_id: Any) -> Any:
    """Return the state after a token."""
    states, edges = np.int64(numbers[sequences + _STATES]), np.int64(numbers[sequences + _EDGES])
    first = sequences + _HEAD
    tokens = first + states + 1
    after = tokens + edges
    shorter = after + edges
    while True:
        low, high = np.int64(numbers[first + state]), np.int64(numbers[first + state + 1])
        end = high
        while low < high:
            middle = (low + high) >> 1
            if numbers[tokens + middle] < token_id:
                low = middle + 1
            else:
                high = middle
        if low < end and numbers[tokens + low] == token_id:
            return np.int64(numbers[after + low])
        if state == 0:
            return np.int64(0)
        state = np.int64(numbers[shorter + state])


@compiled(
    "void(int32[::1], int64[::1], int64[::1], int64[::1], int64[:,::1], int64, int64, int64[::1],"
    " int64[::1], uint8[::1])"
)
def _step(
    numbers: Any,
    blocks: Any,
    at: Any,
    first: Any,
    visits: Any,
    deepest: Any,
    stride: Any,
    ban: Any,
    counts: Any,
    edited: Any,
) -> None:
    """Feed and edit all rows."""
    end = counts[BAN]
    drafted = np.zeros(deepest + 1, np.int64)  # the state at each depth
    for row in range(len(blocks)):
        block, place = blocks[row], at[row]
        sequences = np.int64(numbers[block + _SEQUENCES])
        states, edges = np.int64(numbers[sequences]), np.int64(numbers[sequences + _EDGES])
        bounds = sequences + _HEAD + 2 * states + 1 + 2 * edges
        bans = bounds + states + 1
        drafted[0] = numbers[block + _STATE]
        for visit in range(first[place], first[place + 1]):
            if end + numbers[sequences + _MOST] > len(ban):
                counts[LACKS] = 1
                break
            depth = visits[visit, DEPTH]
            before = drafted[max(depth - 1, 0)]
            state = _follow(numbers, sequences, before, visits[visit, TOKEN])
            drafted[depth] = state
            if state == 0 or visits[visit, ROW] < 0:
                continue
            low, high = np.int64(numbers[bounds + state]), np.int64(numbers[bounds + state + 1])
            base = visits[visit, ROW] * stride
            for which in range(low, high):
                ban[end] = base + numbers[bans + which]
                end += 1
            if high > low:
                edited[visit] |= EDITED
        numbers[block + _STATE] = drafted[0]
    counts[BAN] = end


class BadWordsForm(Form):
    """Rows of bad words."""

    edits = EditKind.BANS

    def fits(self, params: Any, vocab_size: int) -> bool:  # noqa: ARG002 - ids are of the vocabulary
        return params.words is None

    def most(self, params: Any) -> int:
        return len(params.token_ids)

    def block(self, request: Request, limit: int) -> ArenaBlock | None:  # noqa: ARG002 - a state is all
        params, known = request.params, request.state
        key = params.token_ids, params.lengths
        shared = self.arena.share(key, lambda: _numbers_of(known.sequences))
        block = self.arena.take(2, (shared,))
        self.arena.of(block)[:] = known.state, shared.at
        return block

    def step(self, group: Group, visits: Visits, out: Out) -> None:
        _step(
            self.arena.numbers,
            group.blocks,
            group.at,
            visits.first,
            visits.numbers,
            visits.deepest,
            visits.stride,
            out.ban,
            out.counts,
            out.edited,
        )


def _numbers_of(sequences: Automaton) -> Any:
    """Return an automaton as numbers."""
    first, tokens, after, bounds, bans = [0], list[int](), list[int](), [0], list[int]()
    most = 0
    for state, children in enumerate(sequences.children):
        for token_id in sorted(children):
            tokens.append(token_id)
            after.append(children[token_id])
        first.append(len(tokens))
        bans += [*sequences.completing(state)] if state else []  # state 0 bans at every step
        most = max(most, len(bans) - bounds[-1])
        bounds.append(len(bans))
    head = len(sequences.children), len(tokens), most
    parts = *head, *first, *tokens, *after, *sequences.shorter, *bounds, *bans
    return np.array(parts, dtype=np.int32)
