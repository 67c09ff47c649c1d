"""Token sequences that the answer must hold before it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.builtins._sequences import Automaton, Lengths, SequenceIds, split
from sglang_lp.params import FewTokenIds, Parameters, PositiveInt
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class _Words:
    """Which words the output holds, and how far it has written the next missing one."""

    __slots__ = ("_held", "_lengths", "_path", "_state", "_waiting", "_words", "missing")

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._words = Automaton(sequences)
        #: The state of the output, and the states of all prefixes of words in it.
        self._state = 0
        self._held = {0}
        by_end = {self._path_of(sequence)[-1]: sequence for sequence in sequences}
        self._lengths = {end: len(sequence) for end, sequence in by_end.items()}
        #: The words that were missing when last checked: for each the state of the whole word and
        #: its tokens. The last one is forced next.
        self._waiting = [*reversed(by_end.items())]
        #: The states of that word's prefixes, each with its number of tokens.
        self._path: dict[int, int] = {}
        #: How many tokens the missing words have together.
        self.missing = sum(self._lengths.values())
        self._turn()

    def read(self, token_ids: Sequence[int]) -> None:
        """Take in generated tokens."""
        words, held = self._words, self._held
        for token_id in token_ids:
            self._state = state = words.step(self._state, token_id)
            # Stops at the first known state, so a token takes a constant time on average.
            while state not in held:
                held.add(state)
                self.missing -= self._lengths.get(state, 0)
                state = words.shorter[state]
        if self._waiting and self._waiting[-1][0] in held:
            self._turn()

    def begun(self) -> int:
        """Return how many tokens of the next missing word the output ends with."""
        state = self._state
        while state not in self._path:
            state = self._words.shorter[state]
        return self._path[state]

    def next_of(self, begun: int) -> int:
        """Return the token that continues it."""
        return self._waiting[-1][1][begun]

    def _turn(self) -> None:
        """Find the next missing word."""
        while self._waiting and self._waiting[-1][0] in self._held:
            self._waiting.pop()
        if self._waiting:
            path = self._path_of(self._waiting[-1][1])
            self._path = {state: begun for begun, state in enumerate(path)}

    def _path_of(self, sequence: Sequence[int]) -> list[int]:
        states = [0]
        for token_id in sequence:
            states.append(self._words.children[states[-1]][token_id])
        return states


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

    class Params(Parameters, frozen=True):
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
            split(self.token_ids, self.lengths)
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

    def start(self, request: Request) -> _Words:
        """Build the automaton of the words."""
        return _Words(split(request.params.token_ids, request.params.lengths))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        request.state.read(token_ids)

    def edit(self, request: Request, edits: Edits) -> None:
        """Force the next missing word if a rule asks for it, else ban the end."""
        words, params = request.state, request.params
        if not words.missing:
            edits.rest()
            return
        begun = words.begun()
        last = params.within_tokens is not None and (
            request.position + words.missing >= params.within_tokens
        )
        if begun or last or not {*params.eos_token_ids}.isdisjoint(request.top(1)):
            edits.force(words.next_of(begun))
        else:
            edits.ban(params.eos_token_ids)
