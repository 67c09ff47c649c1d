"""Tokens that are runs of characters of one kind: all that have as many lead to one state.

A string of at most 500 characters has a state for each of its positions, and from most of them the
tokens go the same ways. So a vocabulary is sorted by the number of characters once, and a step
looks at the few other tokens only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sglang_lp.closing.vocabulary import make_trie, packed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_lp.closing.determinism import Shape
    from sglang_lp.closing.vocabulary import GrammarVocabulary, Trie

#: Most characters of a run; a longer token is one of the others.
_MOST_LETTERS = 32

#: The state between two characters, and after a byte of no character.
_BETWEEN, _NONE = 0, -1


class Runs(NamedTuple):
    """The tokens of a vocabulary, sorted by a kind of characters.

    Attributes:
        rows: The tokens of one character, of two, and so on, each packed.
        samples: A token to each of ``rows``; -1 if there is none.
        others: The tokens that are no run.
    """

    rows: list[NDArray[np.uint32]]
    samples: list[int]
    others: Trie

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return sum(row.nbytes for row in self.rows) + sum(part.nbytes for part in self.others)


def find_runs(vocabulary: GrammarVocabulary, shape: Shape) -> Runs:
    """Sort the tokens of a vocabulary by the number of characters.

    Args:
        vocabulary: The tokens.
        shape: The bytes of a character.
    """
    trie, table = vocabulary.trie, _table(shape)
    nodes, at, count = np.zeros((3, 1), np.int32)
    letters = np.zeros(vocabulary.size, np.int32)
    while len(nodes):
        children = trie.counts[nodes]
        at, count = np.repeat(at, children), np.repeat(count, children)
        nodes = trie.children(nodes)
        at = table[at, trie.byte[nodes]]
        count = count + (at == _BETWEEN)
        lives = (at != _NONE) & (count <= _MOST_LETTERS)
        nodes, at, count = nodes[lives], at[lives], count[lives]
        whole = at == _BETWEEN
        letters[trie.tokens(nodes[whole])] = np.repeat(count[whole], trie.endings[nodes[whole]])
    rows = [letters == length for length in range(1, int(letters.max(initial=0)) + 1)]
    others = vocabulary.ids[letters[vocabulary.ids] == 0].tolist()
    return Runs(
        [packed(row) for row in rows],
        [int(row.argmax()) if row.any() else -1 for row in rows],
        make_trie(vocabulary.spelled, others),
    )


def _table(shape: Shape) -> NDArray[np.int32]:
    """Return the state after each byte of a character, for each state inside of one."""
    numbers: dict[Shape, int] = {shape: _BETWEEN}
    work = [shape]
    for one in work:
        for _, _, rest in one:
            if rest and rest not in numbers:
                numbers[rest] = len(work)
                work.append(rest)
    table = np.full((len(work), 256), _NONE, np.int32)
    for one in work:
        for low, high, rest in one:
            table[numbers[one], low : high + 1] = numbers[rest] if rest else _BETWEEN
    return table
