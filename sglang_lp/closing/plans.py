"""Plans: short ways in tokens from the state of a text to a complete text and its end token."""

from __future__ import annotations

import heapq
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sglang_lp.closing.automaton import read
from sglang_lp.closing.determinism import determinize, find_letters
from sglang_lp.closing.distances import Growth, has_traps, shortest
from sglang_lp.closing.maps import add_tokens, map_tokens
from sglang_lp.closing.runs import find_runs
from sglang_lp.closing.spelling import FILLERS, WaySpelling
from sglang_lp.closing.states import States
from sglang_lp.closing.vocabulary import packed
from sglang_lp.errors import RequestError, Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_lp.closing.automaton import GrammarAutomaton
    from sglang_lp.closing.runs import Runs
    from sglang_lp.closing.vocabulary import GrammarVocabulary

#: Which texts of a grammar are JSON.
Json = Literal["whole", "parts", "none"]

#: Most states from which the search for the fewest tokens goes on.
_MOST_OPENED = 300

#: Most states whose tables are made with a grammar, the most seconds for them, and the share of all
#: states from which on no more are chosen.
_MOST_PREPARED, _MOST_SECONDS, _MOST_FILLED = 1_000, 0.5, 0.5

#: Estimated bytes: of all states of texts, and of each state of the automaton.
_BYTES_OF_STATES, _BYTES_OF_A_STATE = 16 << 20, 512

#: Estimated bytes of one state after a token, in the tokens from another state.
_BYTES_OF_AN_END = 100


class _StateTokens:
    """The tokens from one state.

    Attributes:
        ends: States after tokens: first those after runs of characters and those after many tokens.
        many: The tokens to each of the first ``ends``, packed.
        token_ids: The other tokens.
        place: For each of ``token_ids``, the index of its state among the other ``ends``.
        most: For each of ``ends``, tokens within which a text can end: the fewest that are known.
        is_exact: For each of ``ends``, whether its plan was made.
        least: For each of ``ends``, tokens below which no text ends.
        samples: A token to each of ``ends``.
        furthest: Most bytes from one of ``ends`` to a complete text.
        nbytes: Most bytes of all of this.
    """

    def __init__(self, plans: Plans, number: int) -> None:
        states, vocabulary = plans.states, plans.vocabulary
        runs, trie = plans.runs_from(number), vocabulary.trie
        self.ends, self.samples = [], []
        self.many: list[NDArray[np.uint32]] = []
        if runs is not None:
            for end, token, row in zip(runs[1], runs[0].samples, runs[0].rows, strict=False):
                if token >= 0:
                    self.ends.append(end)
                    self.samples.append(token)
                    self.many.append(row)
            trie = runs[0].others
        ends, samples, many, self.token_ids, self.place = map_tokens(
            states, number, trie, vocabulary.size
        )
        self.ends += ends
        self.samples += samples
        self.many += many
        near = np.array([states[end].near for end in self.ends], np.int32)
        self.most = near + 1
        self.least = -(-near // vocabulary.longest) + 1
        self.is_exact = near <= 1
        self.furthest = max((states[end].far for end in self.ends), default=0)
        self.nbytes = self.token_ids.nbytes + self.place.nbytes
        self.nbytes += len(many) * vocabulary.stop_row.nbytes + _BYTES_OF_AN_END * len(self.ends)

    def tokens(self, chosen: NDArray[np.bool_], words: int) -> NDArray[np.uint32]:
        """Return the tokens to some of ``ends``, packed.

        Args:
            chosen: Whether each of ``ends`` is one of them.
            words: Number of words of a packed set.
        """
        count = len(self.many)
        row = np.zeros(words, np.uint32)
        for index in np.flatnonzero(chosen[:count]).tolist():
            row |= self.many[index]
        add_tokens(self.token_ids, self.place, chosen[count:], row)
        return row


class Plans:
    """The plans of one grammar for one vocabulary.

    Plans depend only on the grammar, the vocabulary and the state, so that all ranks and all
    servers decide alike, whatever they served before. Cached tables can be made again.

    Args:
        automaton: The grammar.
        vocabulary: The tokens that answers may use.
        json: Whether a text is JSON, or has parts that are. JSON has no raw control characters in
            strings.

    Attributes:
        vocabulary: The tokens.
        states: The states of texts.
        growth: Most bytes that one token adds to the ways of a text.
        shortest: The shortest complete answer that is known, its end token included.
        allowed: Tokens that answers may use, packed; ``None`` if the grammar's mask says as much.
        is_narrower: Whether texts of the grammar are left out whose strings are no JSON, so that
            every row of its mask has to be narrowed.
        nbytes: About the most bytes of the plans, without the vocabulary.

    Raises:
        Unsupported: No complete text can be spelled with these tokens, or a text can come to a
            state from which none can; or the grammar has a form that is not known.
    """

    def __init__(
        self, automaton: GrammarAutomaton, vocabulary: GrammarVocabulary, *, json: Json
    ) -> None:
        control = automaton.control_bytes() if json == "whole" else frozenset()
        self.allowed = None
        if control:
            automaton = automaton.without(control)
            unfit = vocabulary.containing(control)
            vocabulary = vocabulary.without(unfit)
            self.allowed = packed(~np.isin(np.arange(vocabulary.size), [*unfit]))
        given = automaton
        if json == "parts":
            automaton = automaton.without_raw_controls()
        self.is_narrower = automaton is not given
        automaton = determinize(automaton)
        if not vocabulary.stops:
            raise Unsupported("this model has no end token that a complete answer could end with")
        distance = shortest(automaton, vocabulary.single)
        if has_traps(automaton, distance):
            raise Unsupported(
                "the tokens of this model, without those that the request bans, cannot complete "
                "every text that this grammar begins"
            )
        self.vocabulary = vocabulary
        self.growth = Growth.of(automaton, distance).of_a_token(vocabulary.trie)
        self._letters = find_letters(automaton)
        self._runs: dict[int, Runs] = {
            start: vocabulary.keeping.get(
                (vocabulary.key, letter.shape), partial(find_runs, vocabulary, letter.shape)
            )
            for start, letter in self._letters.items()
        }
        self.states = States(automaton, distance, vocabulary.single, self._letters)
        self._spellings = [WaySpelling(self.states, vocabulary, one) for one in FILLERS]
        #: Tokens of the plan of each state that was asked about.
        self._lengths: dict[int, int] = {}
        self._key = object()
        self.nbytes = _BYTES_OF_STATES + _BYTES_OF_A_STATE * len(automaton.edges)
        self.nbytes += sum(runs.nbytes for runs in self._runs.values())
        self.shortest = self._search()

    @classmethod
    def of_compiled(
        cls, compiled: Any, vocabulary: GrammarVocabulary, *, json: Json
    ) -> Plans | str:
        """Return prepared plans of xgrammar's ``CompiledGrammar``, or why there are none."""
        try:
            plans = cls(read(compiled), vocabulary, json=json)
        except RequestError as error:
            return str(error)
        plans.prepare()
        return plans

    def prepare(self) -> None:
        """Make the tables of the states that texts come to first: no step has to wait for them."""
        work = [self.states.start]
        known = {*work}
        latest = time.thread_time() + _MOST_SECONDS
        for number in work:
            if time.thread_time() > latest:
                return
            time.sleep(0)  # the scheduler's thread goes first
            kept = self._tokens(number)
            self._measure(kept, ~kept.is_exact)
            for after in kept.ends:
                if len(known) >= _MOST_PREPARED or self.states.filled > _MOST_FILLED:
                    break
                if after not in known:
                    known.add(after)
                    work.append(after)

    def refresh(self) -> None:
        """Forget all states if there are too many; called between two fills."""
        if self.states.filled > 1:
            self.states.forget()
            self._lengths.clear()
            for one in self._spellings:
                one.forget()

    def plan(self, number: int) -> tuple[int, ...]:
        """Return token ids that complete a text in a state; the last is an end token.

        They spell a shortest way in bytes, of which the fewest tokens are chosen. A vocabulary
        may spell a longer way with fewer tokens.
        """
        state = self.states[number]
        end = self.vocabulary.stops[0]
        if state.ends:
            return (end,)
        spelled = [
            (one.count(place), one, place)
            for place in self.states.nearest(number)
            for one in self._spellings
        ]
        fewest = min(count for count, _, _ in spelled)
        ways = (one.tokens(place) for count, one, place in spelled if count == fewest)
        return (*min(ways), end)

    def length(self, number: int) -> int:
        """Return the number of tokens of a plan."""
        length = self._lengths.get(number)
        if length is None:
            length = 1
            if not self.states[number].ends:
                near = self.states.nearest(number)
                length += min(one.count(place) for place in near for one in self._spellings)
            self._lengths[number] = length
        return length

    def reach(self, number: int) -> int:
        """Return the most bytes to a complete text after any token from a state."""
        return self._tokens(number).furthest

    def fitting(self, number: int, room: int) -> NDArray[np.uint32]:
        """Return the tokens after which a complete text and its end fit.

        Args:
            number: State of the text.
            room: Tokens that are left after the token, the end token included.

        Returns:
            A packed set, see :func:`sglang_lp.closing.vocabulary.packed`.
        """
        kept = self._tokens(number)
        self._measure(kept, (kept.most > room) & (kept.least <= room) & ~kept.is_exact)
        return kept.tokens(kept.most <= room, len(self.vocabulary.stop_row))

    def runs_from(self, number: int) -> tuple[Runs, list[int]] | None:
        """Return the runs of characters that a state reads, and the states after 1, 2 and more.

        Returns:
            ``None`` if the state after a run depends on more than its number of characters.
        """
        start, after = self.states.letter(number)
        if start is None:
            return None
        runs, firsts = self._runs[start], self._letters[start].firsts
        ends: list[int] = []
        while after >= 0 and len(ends) < len(runs.rows):
            ends.append(after)
            following, beyond = self.states.letter(after)
            if following is None and not self.states.reads(after, firsts):
                break
            if following != start:
                return None
            after = beyond
        return runs, ends

    def _measure(self, kept: _StateTokens, some: NDArray[np.bool_]) -> None:
        """Make the plans of some states after tokens."""
        for index in np.flatnonzero(some).tolist():
            kept.most[index] = self.length(kept.ends[index])
        kept.is_exact |= some

    def _tokens(self, number: int) -> _StateTokens:
        key = self._key, self.states.forgotten, number
        kept: _StateTokens = self.vocabulary.keeping.get(key, lambda: _StateTokens(self, number))
        return kept

    def _search(self) -> tuple[int, ...]:
        """Return the shortest complete answer that a bounded search finds.

        The search is A* over states, token by token; the rest of a way has at least as many tokens
        as its bytes need of the longest token.
        """
        start = self.states.start
        best = self.plan(start)
        taken = {start: 0}
        via: dict[int, tuple[int, int]] = {}
        work = [(1, start)]
        opened = 0
        while work and opened < _MOST_OPENED:
            least, number = heapq.heappop(work)
            if least >= len(best):
                break
            opened += 1
            time.sleep(0)  # the scheduler's thread goes first
            tokens = taken[number] + 1
            kept = self._tokens(number)
            for index, after in enumerate(kept.ends):
                if tokens >= taken.get(after, tokens + 1):
                    continue
                taken[after] = tokens
                via[after] = number, kept.samples[index]
                bound = tokens + int(kept.least[index])
                if bound >= len(best):
                    continue
                heapq.heappush(work, (bound, after))
                if tokens + self.length(after) < len(best):
                    best = (*_way(via, start, after), *self.plan(after))
        return best


def _way(via: dict[int, tuple[int, int]], start: int, end: int) -> list[int]:
    """Return the tokens from one state to another, given the last step to each."""
    tokens = []
    while end != start:
        end, token = via[end]
        tokens.append(token)
    return tokens[::-1]
