"""Token sequences that may never be generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.builtins._sequences import Automaton, Lengths, SequenceIds, split
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class _Words:
    """Where the output stands among the words."""

    __slots__ = ("state", "words")

    def __init__(self, words: Automaton) -> None:
        self.words = words
        self.state = 0


class BadWordsLogitProcessor(LogitProcessor):
    """Ban each token that would complete one of several token sequences.

    Only generated tokens count, as with ``bad_words`` in vLLM: a sequence that begins in the prompt
    is not banned. A word has several spellings in tokens, for example with and without a space
    before it; give each one that is to be banned.
    """

    __module__ = "sglang_lp.builtins"
    example: ClassVar[Mapping[str, Any]] = {"token_ids": [1234, 567, 890], "lengths": [2, 1]}

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            token_ids: The ids of all sequences, one sequence after the other.
            lengths: For each sequence its number of tokens, together as many as ``token_ids``.
        """

        token_ids: SequenceIds
        lengths: Lengths

        def __post_init__(self) -> None:
            """Refuse lengths that do not fit."""
            split(self.token_ids, self.lengths)

    def start(self, request: Request) -> _Words:
        """Build the automaton of the sequences."""
        return _Words(Automaton(split(request.params.token_ids, request.params.lengths)))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        progress = request.state
        for token_id in token_ids:
            progress.state = progress.words.step(progress.state, token_id)

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the tokens that would complete a sequence."""
        progress = request.state
        for token_ids in progress.words.completing(progress.state):
            edits.ban(token_ids)
