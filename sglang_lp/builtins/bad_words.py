"""Token sequences that may never be generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.builtins._sequences import (
    Automaton,
    Lengths,
    SequenceIds,
    automaton_of,
    check_lengths,
)
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class _Words:
    """Where the output stands among the words."""

    __slots__ = ("singles", "state", "words")

    def __init__(self, words: Automaton) -> None:
        self.words = words
        self.state = 0
        #: Whether the words of one token are banned for good.
        self.singles = False


class BadWordsLogitProcessor(LogitProcessor):
    """Ban each token that would complete one of several token sequences.

    Only generated tokens count, as with ``bad_words`` in vLLM: a sequence that begins in the prompt
    is not banned. A word has several spellings in tokens, for example with and without a space
    before it; give each one that is to be banned.
    """

    __module__ = "sglang_lp.builtins"
    example: ClassVar[Mapping[str, Any]] = {"token_ids": [1234, 567, 890], "lengths": [2, 1]}

    class Params(Parameters, frozen=True, dict=True):
        """What a request may set.

        Attributes:
            token_ids: The ids of all sequences, one sequence after the other.
            lengths: For each sequence its number of tokens, together as many as ``token_ids``.
        """

        token_ids: SequenceIds
        lengths: Lengths

        def __post_init__(self) -> None:
            """Refuse lengths that do not fit."""
            check_lengths(self.token_ids, self.lengths)

        @cached_property
        def words(self) -> Automaton:
            """The automaton of the sequences."""
            return automaton_of(self.token_ids, self.lengths)

    @classmethod
    def fit_params(cls, params: Any, tokenizer: Any, vocab_size: int | None = None) -> Any:
        """Build the automaton now, while no step waits for it."""
        _ = params.words
        return super().fit_params(params, tokenizer, vocab_size)

    def start(self, request: Request) -> _Words:
        """Begin outside every word."""
        return _Words(request.params.words)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        progress = request.state
        for token_id in token_ids:
            progress.state = progress.words.step(progress.state, token_id)

    def fork(self, request: Request) -> _Words:
        """Copy where the output stands."""
        return copy(request.state)

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the tokens that would complete a sequence; single ones for good."""
        progress, words = request.state, request.state.words
        if not progress.singles:
            progress.singles = True
            edits.always().ban(words.endings[0])
        for token_ids in words.completing(progress.state):
            edits.ban(token_ids)
