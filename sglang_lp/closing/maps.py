"""The state of a text after each token of the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sglang_lp.closing.vocabulary import packed
from sglang_lp.forms.compiled import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_lp.closing.states import States
    from sglang_lp.closing.vocabulary import Trie

#: Tokens to a state from which on they are packed: their share of all token ids, inverted. A packed
#: row has as many words.
_MANY = 32


class Map(NamedTuple):
    """The states after each token from one state.

    Attributes:
        ends: The states after tokens, each once, first those after many tokens.
        samples: The smallest token to each of ``ends``.
        rows: For each of the first ``ends``, its many tokens, packed.
        token_ids: The other tokens that the grammar allows.
        place: For each of ``token_ids``, the index of its state among the other ``ends``.
    """

    ends: list[int]
    samples: list[int]
    rows: list[NDArray[np.uint32]]
    token_ids: NDArray[np.int32]
    place: NDArray[np.int32]


def map_tokens(states: States, number: int, trie: Trie, size: int) -> Map:
    """Walk all tokens from a state, byte by byte, and leave a branch that no text follows.

    Args:
        states: The states of the grammar.
        number: The state.
        trie: The tokens.
        size: Number of token ids.
    """
    work = np.empty((4, len(trie.first)), np.int32)
    found = np.empty((2, len(trie.token_ids)), np.int32)
    work[:2, 0] = 0, number
    waiting, count = 1, 0
    while waiting:
        following, is_open = states.opened({*work[1, :waiting].tolist()})
        waiting, count = _walk(*trie, following, is_open, work, waiting, found, count)
    token_ids, reached = found[:, :count]
    sample, tokens = _count(token_ids, reached, len(following))
    ends = np.flatnonzero(tokens)
    many = tokens[ends] * _MANY >= size
    rows = []
    for end in ends[many].tolist():
        chosen = np.zeros(size, bool)
        chosen[token_ids[reached == end]] = True
        rows.append(packed(chosen))
    ends = np.concatenate([ends[many], ends[~many]])
    index = np.empty(len(following), np.int32)
    index[ends] = np.arange(len(ends)) - len(rows)
    place = index[reached]
    others = place >= 0
    return Map(ends.tolist(), sample[ends].tolist(), rows, token_ids[others], place[others])


@compiled("void(int32[::1], int32[::1], boolean[::1], uint32[::1])")
def add_tokens(token_ids: Any, place: Any, chosen: Any, row: Any) -> None:
    """Add the tokens to some states to a packed row, in place.

    Args:
        token_ids: Tokens of a :class:`Map`.
        place: For each token, the index of its state in ``chosen``.
        chosen: Whether the tokens to each state are added.
        row: The row.
    """
    for i in range(len(token_ids)):
        if chosen[place[i]]:
            token = token_ids[i]
            row[token >> 5] |= np.uint32(1 << (token & 31))


@compiled(
    "UniTuple(int64, 2)(int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], int32[::1],"
    " int32[:, ::1], boolean[::1], int32[:, ::1], int64, int32[:, ::1], int64)"
)
def _walk(  # noqa: PLR0913, PLR0917 - a compiled function takes arrays
    first: Any,
    counts: Any,
    byte: Any,
    token_ids: Any,
    ending: Any,
    endings: Any,
    following: Any,
    is_open: Any,
    work: Any,
    waiting: Any,
    found: Any,
    count: Any,
) -> Any:
    """Walk on from nodes of the trie until their branches end or need a state that is not open.

    Args:
        first: First child of each node of the trie.
        counts: Number of children of each node.
        byte: Byte that leads to each node.
        token_ids: Token ids of the trie.
        ending: Index of the first of ``token_ids`` that ends at each node.
        endings: Number of ``token_ids`` that end at each node.
        following: State after each byte, for each open state.
        is_open: Whether each state is open.
        work: Waiting nodes, their states, and two rows of scratch; changed in place.
        waiting: Number of waiting nodes; their states are open.
        found: Tokens and the state after each, extended in place.
        count: Number of found tokens.

    Returns:
        The new numbers of waiting nodes and of found tokens.
    """
    depth = waiting
    for i in range(waiting):
        work[2, i], work[3, i] = work[0, i], work[1, i]
    waiting = 0
    while depth:
        depth -= 1
        node, state = work[2, depth], work[3, depth]
        if not is_open[state]:
            work[0, waiting], work[1, waiting] = node, state
            waiting += 1
            continue
        for child in range(first[node], first[node] + counts[node]):
            after = following[state, byte[child]]
            if after < 0:
                continue
            for i in range(ending[child], ending[child] + endings[child]):
                found[0, count], found[1, count] = token_ids[i], after
                count += 1
            if counts[child]:
                work[2, depth], work[3, depth] = child, after
                depth += 1
    return waiting, count


@compiled("UniTuple(int32[::1], 2)(int32[::1], int32[::1], int64)")
def _count(token_ids: Any, reached: Any, size: Any) -> Any:
    """Return the smallest token to each state, and the number of tokens to it."""
    sample, tokens = np.zeros(size, np.int32), np.zeros(size, np.int32)
    for i in range(len(reached)):
        end = reached[i]
        if tokens[end] == 0 or token_ids[i] < sample[end]:
            sample[end] = token_ids[i]
        tokens[end] += 1
    return sample, tokens
