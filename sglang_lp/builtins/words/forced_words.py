"""Words that the answer must hold before it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.builtins.phase import AnswerParams
from sglang_lp.builtins.words.missing_words import MissingWords, Words, words_of
from sglang_lp.errors import InvalidParameter
from sglang_lp.params import FewTokenIds, OrNoLimit, PositiveInt, Texts, replaced
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ends_for
from sglang_lp.text.automaton import (
    MAX_SEQUENCE_IDS,
    Lengths,
    SequenceIds,
    check_lengths,
)
from sglang_lp.text.encoding import check_texts, forced_text, served_vocabulary

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

#: Most bytes that the texts of one request may have together: as many as ids.
_MAX_BYTES = MAX_SEQUENCE_IDS


class ForcedWordsLogitProcessor(LogitProcessor):
    """Keep the answer from ending until it holds every one of several words.

    ``words`` are texts as the client gets them. A word counts wherever the generated text contains
    it, whichever tokens spell it; it is forced in the tokens that the tokenizer writes it with.
    With ``token_ids`` a word counts where the generated tokens contain its tokens. A word may be
    inside another word or overlap one. Words in the prompt do not count.

    While words are missing, the first of them in the given order is forced, token by token, if one
    of these holds:

    1. The output ends with some of its first tokens; forcing continues from there.
    2. ``within_tokens`` leaves room for no more than the missing words, one after the other.
    3. The likeliest token is one of ``eos_token_ids``.

    Otherwise ``eos_token_ids`` are banned and the model continues freely. When no word is missing,
    nothing is edited.

    - Because of rule 1 a word that begins with an everyday token comes as soon as the model writes
      that token. Put such a word last, or let it begin with a rarer token.
    - Without ``within_tokens`` a stop condition of the request, such as ``max_new_tokens``, may end
      the answer while words are missing.
    - Rule 3 does not wait for the device, except while the next word waits for the end of a
      character that the model spells in single bytes.

    ``force_words_ids`` of a beam search in Transformers does this for several answers.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    example: ClassVar[Mapping[str, Any]] = {
        "words": [" in summary", " source:"],
        "within_tokens": 256,
    }

    class Params(AnswerParams, frozen=True, dict=True):
        """The parameters of a request.

        Attributes:
            words: Texts of up to 256 characters, together up to 4,096 bytes of UTF-8, in the order
                in which they are forced. Give ``words`` or ``token_ids``. Nothing is put between
                words: let a word begin with a space where it needs one.
            token_ids: The ids of all words, one word after the other, in that order.
            lengths: For each word its number of tokens, together as many as ``token_ids``.
            eos_token_ids: All tokens that end the answer, at most 1,024. None may be in a word.
                Left out: the end tokens of the served model.
            within_tokens: Number of generated tokens that must contain all words, at least as many
                as the words have; the request's ``max_new_tokens`` or less. Left out: no limit.
        """

        words: Texts | None = None
        token_ids: SequenceIds | None = None
        lengths: Lengths | None = None
        eos_token_ids: FewTokenIds | None = None
        within_tokens: OrNoLimit[PositiveInt] = None

        def __post_init__(self) -> None:
            """Refuse lengths that do not fit, words that end the answer, and too little room."""
            if self.words is not None:
                check_texts("words", self.words, _MAX_BYTES)
            elif self.token_ids is None:
                raise ValueError("words: expected words, or token_ids and lengths; got neither")
            if self.token_ids is None:
                if self.lengths is not None:
                    raise ValueError("lengths: expected with token_ids only")
                return
            if self.lengths is None:
                raise ValueError("lengths: expected the length of each word of token_ids")
            check_lengths(self.token_ids, self.lengths)
            both = {*(self.eos_token_ids or ())}.intersection(self.token_ids)
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

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Turn the words into tokens of the served model, and name its end tokens.

        Raises:
            InvalidParameter: The model cannot write a word, ``token_ids`` are given as well, or no
                end tokens are known.
        """
        ends = ends_for(cls.__name__, "eos_token_ids", params.eos_token_ids, served)
        token_ids, lengths = params.token_ids, params.lengths
        if params.words is not None:
            if token_ids is not None:
                raise InvalidParameter(
                    cls.__name__, "token_ids", "given together with words; give one"
                )
            words = tuple(dict.fromkeys(params.words))
            given = cls.__name__, "words", served.tokenizer
            spelled = [forced_text(*given, word, served.vocab_size) for word in words]
            token_ids = tuple(token_id for word in spelled for token_id in word)
            lengths = tuple(map(len, spelled))
            params = replaced(params, cls.__name__, words=words)
        return replaced(
            params, cls.__name__, token_ids=token_ids, lengths=lengths, eos_token_ids=ends
        )

    @classmethod
    def _words(cls, params: Any, tokenizer: Any) -> Words:
        """Return the compiled words."""
        given = params.token_ids, params.lengths
        if params.words is None:
            return words_of(*given)
        vocabulary = served_vocabulary(cls.__name__, "words", tokenizer)
        return words_of(*given, params.words, vocabulary)

    def start(self, request: Request) -> MissingWords:
        """Begin with no word."""
        return MissingWords(self._words(request.params, request.tokenizer))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        request.state.read(token_ids)

    def fork(self, request: Request) -> MissingWords:
        """Copy the state; the words are shared."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Force the next missing word if a rule asks for it, else ban the end."""
        progress, params = request.state, request.params
        runs = progress.words.byte_runs
        if not progress.missing:
            if progress.is_open:
                edits.ban(runs.listed)
            else:
                edits.rest()
            return
        begun = progress.begun()
        last = params.within_tokens is not None and (
            request.position + progress.missing + progress.words.spare >= params.within_tokens
        )
        is_due = begun > 0 or last or request.is_among_top(params.eos_token_ids, 1)
        token_id = progress.next_of(begun)
        if token_id is not None:
            edits = edits.force_if(is_due, token_id)
        edits.ban(params.eos_token_ids)
        if token_id is None and is_due:
            edits.ban(runs.leaving_open(edits.vocab_size))
        elif progress.is_open:
            edits.ban(runs.listed)

    def explain(self, request: Request) -> str:
        """Say how many tokens are missing."""
        return f"{request.state.missing} tokens of the words are missing"
