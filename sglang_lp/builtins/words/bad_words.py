"""Words that may never be generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.errors import refusing
from sglang_lp.params import FewTokenIds, Parameters, Texts, replaced
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ends_for, shows_ends
from sglang_lp.text.automaton import (
    Automaton,
    Lengths,
    SequenceIds,
    automaton_of,
    check_lengths,
)
from sglang_lp.text.banned import BannedTexts, banned_texts
from sglang_lp.text.canonical import in_all_forms, joining
from sglang_lp.text.encoding import check_texts, known_ids, served_vocabulary
from sglang_lp.text.whole_words import WholeWords, prepare, whole_words

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel
    from sglang_lp.text.vocabulary import Vocabulary


#: The compiled words, for each text that a client may get.
_Texts: TypeAlias = "tuple[BannedTexts | WholeWords, ...]"


class _BannedProgress:
    """How much of a word the output has begun."""

    __slots__ = ("declared", "ends", "sequences", "state", "texts")

    def __init__(self, sequences: Automaton | None, texts: _Texts, ends: tuple[bytes, ...]) -> None:
        self.sequences = sequences
        self.state = 0
        self.texts = texts
        #: For each of the texts the suffix of the output that may be the beginning of a word.
        self.ends = ends
        #: Whether the tokens that contain a word have been banned for the whole request.
        self.declared = False


class BadWordsLogitProcessor(LogitProcessor):
    """Keep words out of the output, whichever tokens would spell them.

    ``words`` are texts as the client gets them. None of them is ever in the output, not even inside
    a longer word, unless ``whole_words`` is set. Exactly the tokens that would complete a word are
    banned: a model that was about to write ``foobar`` may write ``fooba`` and continue otherwise.
    A client may get the text with or without special tokens; neither text contains a word.

    ``token_ids`` are sequences of tokens, as ``bad_words`` in vLLM: a word spelled by other tokens
    is not banned. Only generated tokens count.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    example: ClassVar[Mapping[str, Any]] = {"words": ["as an AI", "foobar"], "ignore_case": True}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            words: Texts of up to 256 characters, together up to 32,768 bytes of UTF-8.
            ignore_case: Whether words are banned in upper and lower case, as Unicode folds case:
                ``straße`` equals ``STRASSE``, all forms of sigma are equal, and ``I`` equals ``i``,
                in Turkish as well.
            whole_words: Whether a word counts only without a letter, mark, number or ``_`` directly
                before or after it: ``cat`` is in ``cat-like``, not in ``cats``. The model may then
                write a word to its end, and must continue with one of those characters. An answer
                that ``max_new_tokens`` cuts there ends with the word.
            normalize: Whether a word is banned in every form that is canonically equivalent in
                Unicode: ``café`` with one character at its end, or with ``e`` and an accent. At
                most 1,000 forms of a word, and 3,072 of all words, of 32,768 bytes together.
            across_prompt: Whether a word that begins in the prompt is banned as well.
            eos_token_ids: The tokens that end an answer. SGLang takes their names off the answer,
                so the names may contain a word. With ``whole_words`` these tokens are banned right
                after a word. Left out: the end tokens of the served model.
            token_ids: The ids of all sequences, one sequence after the other.
            lengths: For each sequence its number of tokens, together as many as ``token_ids``.
        """

        words: Texts | None = None
        ignore_case: bool = False
        whole_words: bool = False
        normalize: bool = False
        across_prompt: bool = False
        eos_token_ids: FewTokenIds | None = None
        token_ids: SequenceIds | None = None
        lengths: Lengths | None = None

        def __post_init__(self) -> None:
            """Refuse an empty list, and parameters whose counterpart is missing."""
            if self.words is None:
                for name in ("ignore_case", "whole_words", "normalize", "across_prompt"):
                    if getattr(self, name):
                        raise ValueError(f"{name}: expected words with it")
                if self.token_ids is None:
                    raise ValueError("words: expected words, or token_ids and lengths; got neither")
            else:
                check_texts("words", self.words)
            if self.eos_token_ids is not None and self.words is None:
                raise ValueError("eos_token_ids: expected words with it")
            if self.token_ids is None:
                if self.lengths is not None:
                    raise ValueError("lengths: expected with token_ids only")
            elif self.lengths is None:
                raise ValueError("lengths: expected the length of each sequence of token_ids")
            else:
                check_lengths(self.token_ids, self.lengths)

    @classmethod
    def warm(cls, vocabulary: Vocabulary) -> None:
        """Find where words begin and end in all tokens, and which characters compose."""
        prepare(vocabulary)
        joining()

    @classmethod
    def fit_params(cls, params: Parameters, served: ServedModel) -> Parameters:
        """Refuse words that the served model cannot write, or that leave it nothing to write."""
        given: Any = params
        if given.whole_words:
            ends = ends_for(cls.__name__, "eos_token_ids", given.eos_token_ids, served)
            params = given = replaced(given, cls.__name__, eos_token_ids=ends)
        elif given.words is not None and given.eos_token_ids is None and served.eos_token_ids:
            params = given = replaced(given, cls.__name__, eos_token_ids=served.eos_token_ids)
        cls._texts(given, served.tokenizer, given.eos_token_ids or ())
        return super().fit_params(params, served)

    @classmethod
    def _texts(cls, params: Any, tokenizer: Any, spared: tuple[int, ...]) -> _Texts:
        """Return the automata of the words."""
        if params.words is None:
            return ()
        words = params.words
        if params.normalize:
            vocabulary = served_vocabulary(cls.__name__, "words", tokenizer)
            with refusing(cls.__name__, "words"):
                words = in_all_forms(vocabulary, words)
        make = whole_words if params.whole_words else banned_texts
        ignore_case = params.ignore_case
        return make(cls.__name__, "words", tokenizer, words, ignore_case=ignore_case, spared=spared)

    @classmethod
    def _sequences(cls, params: Any) -> Automaton | None:
        """Return the automaton of the token sequences."""
        return automaton_of(params.token_ids, params.lengths) if params.token_ids else None

    def start(self, request: Request) -> _BannedProgress:
        """Look up the automata of the sequences and of the words."""
        params = request.params
        shown = shows_ends(getattr(request, "sampling", None))
        texts = self._texts(params, request.tokenizer, () if shown else params.eos_token_ids or ())
        ends = tuple(
            one.begin(request.prompt_ids) if params.across_prompt else one.start for one in texts
        )
        return _BannedProgress(self._sequences(params), texts, ends)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        progress = request.state
        for token_id in token_ids:
            if progress.sequences is not None:
                progress.state = progress.sequences.step(progress.state, token_id)
            if progress.texts:
                both = zip(progress.texts, progress.ends, strict=True)
                progress.ends = tuple([one.step(end, token_id) for one, end in both])

    def fork(self, request: Request) -> _BannedProgress:
        """Copy the state; the automata are shared."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the tokens that would complete a begun word, or contain a word."""
        progress = request.state
        sequences, texts = progress.sequences, progress.texts
        if not progress.declared:
            progress.declared = True
            if sequences is not None:
                edits.always().ban(sequences.completing(0))
            for one in texts:
                edits.always().ban(known_ids(one.always, edits.vocab_size))
        if sequences is not None and progress.state:
            edits.ban(sequences.completing(progress.state))
        if not texts:
            return
        for one, end in zip(texts, progress.ends, strict=True):
            if completing := one.completing(end):
                edits.ban(known_ids(completing, edits.vocab_size))
            if isinstance(one, WholeWords):
                after_word = one.after_word(end, edits.vocab_size)
                if after_word is not None:
                    edits.ban(after_word)
                    edits.ban(request.params.eos_token_ids)

    def explain(self, request: Request) -> str:  # noqa: ARG002 - it is the same everywhere
        """Say why the tokens are banned."""
        return "each would complete a banned word"
