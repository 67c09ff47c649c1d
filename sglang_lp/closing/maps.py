"""The state of a text after each token of the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_lp.closing.states import States
    from sglang_lp.closing.vocabulary import Trie


class Map(NamedTuple):
    """The states after each token from one state.

    Attributes:
        ends: The states after tokens, each once.
        token_ids: The tokens that the grammar allows.
        place: For each of ``token_ids``, the index of its state in ``ends``.
        samples: A token to each of ``ends``.
    """

    ends: list[int]
    token_ids: NDArray[np.int32]
    place: NDArray[np.int32]
    samples: list[int]


def map_tokens(states: States, number: int, trie: Trie) -> Map:
    """Walk all tokens from a state, byte by byte, and leave a branch that no text follows.

    Args:
        states: The states of the grammar.
        number: The state.
        trie: The tokens.
    """
    nodes, at = np.zeros(1, np.int32), np.full(1, number, np.int32)
    tokens, after = [], []
    while len(nodes):
        at = np.repeat(at, trie.counts[nodes])
        nodes = trie.children(nodes)
        at = states.step_each(at, trie.byte[nodes])
        lives = at >= 0
        nodes, at = nodes[lives], at[lives]
        tokens.append(trie.tokens(nodes))
        after.append(np.repeat(at, trie.endings[nodes]))
    token_ids, reached = np.concatenate(tokens), np.concatenate(after)
    # States are small numbers, so they are counted, which is quicker than sorting.
    sample = np.full(int(reached.max(initial=-1)) + 1, -1, np.int32)
    sample[reached[::-1]] = token_ids[::-1]
    ends = np.flatnonzero(sample >= 0)
    index = np.zeros(len(sample), np.int32)
    index[ends] = np.arange(len(ends))
    return Map(ends.tolist(), token_ids, index[reached], sample[ends].tolist())
