"""Several token sequences: splitting them from flat lists, and matching them in the output."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Annotated

from msgspec import Meta

from sglang_lp.caches import KeptIds, shared_by_copies
from sglang_lp.edits.ids import Ids, lasting
from sglang_lp.params import PositiveInt, TokenId

#: Most ids that the sequences of one request may have together: their automaton is built when the
#: request arrives.
MAX_SEQUENCE_IDS = 4_096

SequenceIds = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_SEQUENCE_IDS)]
Lengths = Annotated[tuple[PositiveInt, ...], Meta(min_length=1, max_length=MAX_SEQUENCE_IDS)]


def check_lengths(token_ids: Sequence[int], lengths: Sequence[int]) -> None:
    """Refuse lengths that do not add up; arguments as for :func:`split`.

    Raises:
        ValueError: Their sum is not the number of ``token_ids``.
    """
    if sum(lengths) != len(token_ids):
        raise ValueError(
            "lengths: expected the length of each sequence, together the "
            f"{len(token_ids)} of token_ids, got {sum(lengths)}"
        )


def split(token_ids: Sequence[int], lengths: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield several sequences from the two flat lists that a request carries.

    Args:
        token_ids: The ids of all sequences, one sequence after the other.
        lengths: For each sequence its number of tokens, together as many as ``token_ids``.
    """
    for length, end in zip(lengths, accumulate(lengths), strict=True):
        yield token_ids[end - length : end]


_NONE = array("q")

#: Children of a state in which every sequence ends. Most states of many short sequences are such,
#: and a dict for each would make Python collect garbage.
_LEAF: dict[int, int] = {}


class Automaton:
    """Follows the longest prefix of any sequence that is a suffix of the tokens so far.

    The Aho-Corasick automaton: a token takes a constant time on average, whatever the
    number and the length of the sequences and of the history. States are numbers, 0 is the
    start; all lists are indexed by them.

    Attributes:
        children: For each state, the tokens that continue a sequence and where they lead.
        shorter: For each state, the state of the next shorter prefix that is a suffix of it.
        complete: Whether a whole sequence leads to this state.
        endings: For each state, the tokens that lead from it to a complete sequence.
    """

    __slots__ = ("_kept", "_shorter_ending", "children", "complete", "endings", "shorter")

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self.children: list[dict[int, int]] = [{}]
        children, ends = self.children, []
        states = 1
        for sequence in sequences:
            state = 0
            for token_id in sequence:
                following = children[state]
                if token_id in following:
                    state = following[token_id]
                    continue
                if following is _LEAF:  # where no sequence has led so far
                    following = children[state] = {}
                state = following[token_id] = states
                children.append(_LEAF)
                states += 1
            ends.append(state)
        self.complete = [False] * states
        for state in ends:
            self.complete[state] = True
        self.endings = [
            array("q", [token_id for token_id, after in following.items() if self.complete[after]])
            if following
            else _NONE
            for following in children
        ]
        self.shorter = [0] * states
        #: For each state, the next state by ``shorter`` that has endings.
        self._shorter_ending = [0] * states
        for layer in self._layers():
            for state in layer:
                before = self.shorter[state]
                for token_id, after in children[state].items():
                    shorter = self.shorter[after] = self.step(before, token_id)
                    has_endings = self.endings[shorter]
                    self._shorter_ending[after] = (
                        shorter if has_endings else self._shorter_ending[shorter]
                    )
        self._kept: KeptIds[Ids | list[int]] = KeptIds()

    def by_length(self) -> Iterator[int]:
        """Yield every state but the start, shorter prefixes first."""
        children = self.children
        yield from children[0].values()
        for layer in self._layers():
            for state in layer:
                yield from children[state].values()

    def _layers(self) -> Iterator[list[int]]:
        """Yield the states in which a sequence continues, shorter prefixes first."""
        children = self.children
        layer = [state for state in children[0].values() if children[state]]
        while layer:
            yield layer
            layer = [
                after for state in layer for after in children[state].values() if children[after]
            ]

    def step(self, state: int, token_id: int) -> int:
        """Return the state after one more token."""
        while state and token_id not in self.children[state]:
            state = self.shorter[state]
        return self.children[state].get(token_id, 0)

    def completing(self, state: int) -> Ids | list[int]:
        """Return the tokens that would complete a sequence that has begun.

        State 0 lists the tokens that are a sequence by themselves; other states leave these out.
        """
        return self._kept.of(state, self._completing)

    def _completing(self, state: int) -> Ids | list[int]:
        found = dict.fromkeys(self.endings[state])
        while (state := self._shorter_ending[state]) > 0:
            found.update(dict.fromkeys(self.endings[state]))
        return lasting([*found])


@shared_by_copies
def automaton_of(token_ids: tuple[int, ...], lengths: tuple[int, ...]) -> Automaton:
    """Return the automaton of sequences, one for all requests; arguments as for :func:`split`."""
    return Automaton(split(token_ids, lengths))
