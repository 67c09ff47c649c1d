"""Token sequences that the answer must hold before it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sglang_lp.builtins.sequences import (
    Lengths,
    SequenceIds,
    automaton_of,
    check_lengths,
    split,
)
from sglang_lp.params import FewTokenIds, Parameters, PositiveInt
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class _Word(NamedTuple):
    """One of the words.

    Attributes:
        token_ids: Its tokens.
        path: The states of its prefixes, each with its number of tokens, itself included.
        end: The last of them.
    """

    token_ids: Sequence[int]
    path: Mapping[int, int]
    end: int


class _Words:
    """The words of a request, the same for all its copies.

    Attributes:
        automaton: Follows them.
        words: Each of them once, in the given order.
        lengths: For the state in which a word ends its number of tokens.
        total: How many tokens all words have together.
    """

    __slots__ = ("automaton", "lengths", "total", "words")

    def __init__(self, token_ids: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        self.automaton = automaton_of(token_ids, lengths)
        distinct = dict.fromkeys(split(token_ids, lengths))
        self.words = [self._word(token_ids) for token_ids in distinct]
        self.lengths = {word.end: len(word.token_ids) for word in self.words}
        self.total = sum(self.lengths.values())

    def _word(self, token_ids: Sequence[int]) -> _Word:
        children, state = self.automaton.children, 0
        path = {0: 0}
        for begun, token_id in enumerate(token_ids, 1):
            state = children[state][token_id]
            path[state] = begun
        return _Word(token_ids, path, state)


@lru_cache(maxsize=16)
def _words_of(token_ids: tuple[int, ...], lengths: tuple[int, ...]) -> _Words:
    """Return the words of all requests with these parameters."""
    return _Words(token_ids, lengths)


class _Progress:
    """Which words the output holds, and how far it has written the next missing one.

    Attributes:
        words: What is asked for.
        missing: How many tokens the missing words have together.
    """

    __slots__ = ("_held", "_next", "_state", "missing", "words")

    def __init__(self, words: _Words) -> None:
        self.words = words
        self.missing = words.total
        #: The state of the output, and a bit for each state of a prefix of words in it. A number,
        #: because it is copied for every drafted token.
        self._state = 0
        self._held = 1
        #: Index of the word that is forced next.
        self._next = 0

    def read(self, token_ids: Sequence[int]) -> None:
        """Take in generated tokens."""
        words = self.words
        automaton, lengths, held = words.automaton, words.lengths, self._held
        for token_id in token_ids:
            self._state = state = automaton.step(self._state, token_id)
            # Stops at the first known state, so a token takes a constant time on average.
            while not held >> state & 1:
                held |= 1 << state
                self.missing -= lengths.get(state, 0)
                state = automaton.shorter[state]
        self._held = held
        while self.missing and held >> words.words[self._next].end & 1:
            self._next += 1

    def begun(self) -> int:
        """Return how many tokens of the next missing word the output ends with."""
        shorter, path = self.words.automaton.shorter, self.words.words[self._next].path
        state = self._state
        while state not in path:
            state = shorter[state]
        return path[state]

    def next_of(self, begun: int) -> int:
        """Return the token that continues it."""
        return self.words.words[self._next].token_ids[begun]


class ForcedWordsLogitProcessor(LogitProcessor):
    """Keep the answer from ending until it holds every one of several token sequences, the words.

    A word counts wherever the generated tokens hold it, also inside or overlapping another word.
    Words in the prompt do not count. While words are missing, the first of them in the given order
    is forced, token by token, if one of these holds:

    1. The output ends with a prefix of it; forcing continues from there.
    2. ``within_tokens`` leaves room for no more than the missing words, one after the other.
    3. The likeliest token is one of ``eos_token_ids``.

    Otherwise ``eos_token_ids`` are banned and the model continues by itself. When no word is
    missing, nothing is edited.

    Because of rule 1 a word that begins with an everyday token comes as soon as the model writes
    that token; put it last, or let it begin with a rarer one. Without ``within_tokens`` a stop
    condition of the request, such as ``max_new_tokens``, may end the answer while words are
    missing. For one answer the same as ``force_words_ids`` for a beam search in Transformers.

    Rule 3 waits for the device once a step while words are missing.
    """

    __module__ = "sglang_lp.builtins"
    example: ClassVar[Mapping[str, Any]] = {
        "token_ids": [1234, 567, 890],
        "lengths": [2, 1],
        "eos_token_ids": [2],
        "within_tokens": 256,
    }

    class Params(Parameters, frozen=True, dict=True):
        """What a request may set.

        Attributes:
            token_ids: The ids of all words, one word after the other, in the order in which they
                are forced.
            lengths: For each word its number of tokens, together as many as ``token_ids``.
            eos_token_ids: All tokens that end the answer, at most 1,024. None may be in a word.
            within_tokens: Number of generated tokens that must hold all words, at least as many as
                ``token_ids``; give the request's ``max_new_tokens`` or less. Left out: no limit.
        """

        token_ids: SequenceIds
        lengths: Lengths
        eos_token_ids: FewTokenIds
        within_tokens: PositiveInt | None = None

        def __post_init__(self) -> None:
            """Refuse lengths that do not fit, words that end the answer, and too little room."""
            check_lengths(self.token_ids, self.lengths)
            both = {*self.eos_token_ids}.intersection(self.token_ids)
            if both:
                raise ValueError(
                    f"eos_token_ids: expected tokens that are in no word, got {min(both)}, which "
                    "is in one"
                )
            if self.within_tokens is not None and self.within_tokens < len(self.token_ids):
                raise ValueError(
                    f"within_tokens: expected at least the {len(self.token_ids)} tokens that the "
                    f"words have together, got {self.within_tokens}"
                )

        @cached_property
        def words(self) -> _Words:
            """The words, ready to be followed."""
            return _words_of(self.token_ids, self.lengths)

    def start(self, request: Request) -> _Progress:
        """Begin with no word."""
        return _Progress(request.params.words)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        request.state.read(token_ids)

    def fork(self, request: Request) -> _Progress:
        """Copy which words there are."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Force the next missing word if a rule asks for it, else ban the end."""
        progress, params = request.state, request.params
        if not progress.missing:
            edits.rest()
            return
        begun = progress.begun()
        last = params.within_tokens is not None and (
            request.position + progress.missing >= params.within_tokens
        )
        if begun or last or request.is_among_top(params.eos_token_ids, 1):
            edits.force(progress.next_of(begun))
        else:
            edits.ban(params.eos_token_ids)
