"""Words that the answer must hold before it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sglang_lp.copies import shared_by_copies
from sglang_lp.errors import InvalidParameter
from sglang_lp.params import FewTokenIds, Parameters, PositiveInt, Texts, replaced
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ends_for
from sglang_lp.text.automaton import (
    MAX_SEQUENCE_IDS,
    Automaton,
    Lengths,
    SequenceIds,
    automaton_of,
    check_lengths,
    split,
)
from sglang_lp.text.byte_runs import BROKEN, NO_RUNS
from sglang_lp.text.encoding import check_texts, forced_text, served_vocabulary

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel
    from sglang_lp.text.vocabulary import Vocabulary

#: Most bytes that the texts of one request may have together: as many as ids.
_MAX_BYTES = MAX_SEQUENCE_IDS


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


class _Texts:
    """The words as texts, to find them whichever tokens spell them.

    Attributes:
        automaton: Follows them, byte by byte.
        newest: For each state, the nearest one on its way to shorter prefixes, itself included,
            at which a word is complete; 0 if there is none.
    """

    __slots__ = ("automaton", "newest")

    def __init__(self, texts: Sequence[str]) -> None:
        self.automaton = automaton = Automaton([text.encode() for text in texts])
        self.newest = [0] * len(automaton.children)
        for state in automaton.by_length():
            complete = automaton.complete[state]
            self.newest[state] = state if complete else self.newest[automaton.shorter[state]]

    def end_of(self, text: str) -> int:
        """Return the state in which a word is complete."""
        state = 0
        for byte in text.encode():
            state = self.automaton.children[state][byte]
        return state


class _Words:
    """The words of a request, the same for all its copies.

    Attributes:
        automaton: Follows them.
        byte_runs: Those of the vocabulary that spells the texts.
        words: Each of them once, in the given order.
        lengths: For the state in which a word ends its number of tokens.
        total: How many tokens all words have together.
        spare: How many more may be needed before the first of them.
        texts: The words as texts, if they were given so.
        spelled: For each state of ``texts`` in which one is complete, the state in which its
            tokens are.
    """

    __slots__ = (
        "automaton", "byte_runs", "lengths", "spare", "spelled", "texts", "total", "words",
    )  # fmt: skip

    def __init__(
        self,
        token_ids: tuple[int, ...],
        lengths: tuple[int, ...],
        texts: tuple[str, ...],
        vocabulary: Vocabulary | None,
    ) -> None:
        self.automaton = automaton_of(token_ids, lengths)
        distinct = dict.fromkeys(split(token_ids, lengths))
        self.words = [self._word(token_ids) for token_ids in distinct]
        self.lengths = {word.end: len(word.token_ids) for word in self.words}
        self.total = sum(self.lengths.values())
        self.texts: _Texts | None = None
        self.spelled: dict[int, int] = {}
        self.byte_runs = NO_RUNS if vocabulary is None else vocabulary.byte_runs
        self.spare = int(any(word.token_ids[0] in self.byte_runs.ids for word in self.words))
        if vocabulary is not None:
            self.texts = found = _Texts(texts)
            own = map(self._word, split(token_ids, lengths))
            self.spelled = {
                found.end_of(text): word.end for text, word in zip(texts, own, strict=True)
            }

    def _word(self, token_ids: Sequence[int]) -> _Word:
        children, state = self.automaton.children, 0
        path = {0: 0}
        for begun, token_id in enumerate(token_ids, 1):
            state = children[state][token_id]
            path[state] = begun
        return _Word(token_ids, path, state)


@shared_by_copies
def _words_of(
    token_ids: tuple[int, ...],
    lengths: tuple[int, ...],
    texts: tuple[str, ...] = (),
    vocabulary: Vocabulary | None = None,
) -> _Words:
    """Return the words of all requests with these parameters."""
    return _Words(token_ids, lengths, texts, vocabulary)


class _Progress:
    """Which words the output holds, and how far it has written the next missing one.

    Attributes:
        words: What is asked for.
        missing: How many tokens the missing words have together.
        is_open: Whether a word stands only if the run of byte tokens that it ends goes no further.
    """

    __slots__ = ("_held", "_next", "_said", "_state", "_unsettled", "is_open", "missing", "words")

    def __init__(self, words: _Words) -> None:
        self.words = words
        self.missing = words.total
        self.is_open = False
        #: The state of the output, and a bit for each state of a prefix of words in it. A number,
        #: because it is copied for every drafted token.
        self._state = 0
        self._held = 1
        #: The state of the output as text, and what keeps its last run of bytes from being whole.
        self._said = 0
        self._unsettled = b""
        #: Index of the word that is forced next.
        self._next = 0

    def read(self, token_ids: Sequence[int]) -> None:
        """Take in generated tokens."""
        words = self.words
        automaton, lengths, texts = words.automaton, words.lengths, words.texts
        for token_id in token_ids:
            if texts is not None:  # before the tokens: a text holds all that its tokens do
                self._read_text(texts, token_id)
            # What is broken holds no word and begins none.
            state = 0 if self._unsettled == BROKEN else automaton.step(self._state, token_id)
            self._state = state
            # Stops at the first known state, so a token takes a constant time on average.
            while not self._held >> state & 1:
                self._held |= 1 << state
                self.missing -= lengths.get(state, 0)
                state = automaton.shorter[state]
        while self.missing and self._held >> words.words[self._next].end & 1:
            self._next += 1

    def _read_text(self, texts: _Texts, token_id: int) -> None:
        """Note the words that were completed, whichever tokens spelled them."""
        words, automaton, missing = self.words, texts.automaton, self.missing
        runs = words.byte_runs
        said = runs.joined(self._unsettled, token_id)
        added = said[len(self._unsettled) :]
        for byte in added:
            self._said = automaton.step(self._said, byte)
            found = texts.newest[self._said]
            while found and not self._held >> words.spelled[found] & 1:
                self._held |= 1 << words.spelled[found]
                self.missing -= words.lengths[words.spelled[found]]
                found = texts.newest[automaton.shorter[found]]
        self._unsettled = runs.unsettled(said)
        if added:
            self.is_open = self.missing < missing and token_id in runs.ids

    def begun(self) -> int:
        """Return how many tokens of the next missing word the output ends with."""
        shorter, path = self.words.automaton.shorter, self.words.words[self._next].path
        state = self._state
        while state not in path:
            state = shorter[state]
        return path[state]

    def next_of(self, begun: int) -> int | None:
        """Return the token that continues it, ``None`` if a run of bytes has to end before."""
        token_id = self.words.words[self._next].token_ids[begun]
        if self._unsettled and not begun and token_id in self.words.byte_runs.ids:
            return None
        return token_id


class ForcedWordsLogitProcessor(LogitProcessor):
    """Keep the answer from ending until it holds every one of several words.

    With ``words``, texts as the client gets them, a word counts wherever the generated text holds
    it, whichever tokens spell it; it is forced in the tokens that the tokenizer writes it with.
    With ``token_ids`` it counts where the generated tokens hold its own. Either way it may stand
    inside another word or overlap one. Words in the prompt do not count.

    While words are missing, the first of them in the given order is forced, token by token, if one
    of these holds:

    1. The output ends with some of its first tokens; forcing continues from there.
    2. ``within_tokens`` leaves room for no more than the missing words, one after the other.
    3. The likeliest token is one of ``eos_token_ids``.

    Otherwise ``eos_token_ids`` are banned and the model continues by itself. When no word is
    missing, nothing is edited.

    Because of rule 1 a word that begins with an everyday token comes as soon as the model writes
    that token; put it last, or let it begin with a rarer one. Without ``within_tokens`` a stop
    condition of the request, such as ``max_new_tokens``, may end the answer while words are
    missing. For one answer the same as ``force_words_ids`` for a beam search in Transformers.

    Nobody waits for the device on account of rule 3, unless the next word has to wait for the end
    of a character that the model spells in single bytes.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    example: ClassVar[Mapping[str, Any]] = {
        "words": [" in summary", " source:"],
        "within_tokens": 256,
    }

    class Params(Parameters, frozen=True, dict=True):
        """What a request may set.

        Attributes:
            words: Texts of up to 256 characters, together up to 4,096 bytes of UTF-8, in the order
                in which they are forced. Either these or ``token_ids``. Nothing is put between
                them: let a word begin with a space where it needs one.
            token_ids: The ids of all words, one word after the other, in that order.
            lengths: For each word its number of tokens, together as many as ``token_ids``.
            eos_token_ids: All tokens that end the answer, at most 1,024. None may be in a word.
                Left out: the end tokens of the served model.
            within_tokens: Number of generated tokens that must hold all words, at least as many as
                those have; give the request's ``max_new_tokens`` or less. Left out: no limit.
        """

        words: Texts | None = None
        token_ids: SequenceIds | None = None
        lengths: Lengths | None = None
        eos_token_ids: FewTokenIds | None = None
        within_tokens: PositiveInt | None = None

        def __post_init__(self) -> None:
            """Refuse lengths that do not fit, words that end the answer, and too little room."""
            if self.words is not None:
                check_texts("words", self.words, _MAX_BYTES)
            elif self.token_ids is None:
                raise ValueError("words: expected these, or token_ids and lengths")
            if self.token_ids is None:
                if self.lengths is not None:
                    raise ValueError("token_ids: expected these with lengths")
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
        """Turn the words into tokens of the served model, and name its end tokens."""
        ends = ends_for(cls.__name__, "eos_token_ids", params.eos_token_ids, served)
        token_ids, lengths = params.token_ids, params.lengths
        if params.words is not None:
            if token_ids is not None:
                raise InvalidParameter(cls.__name__, "token_ids", "given together with words")
            words = tuple(dict.fromkeys(params.words))
            spelled = [forced_text(cls.__name__, "words", served.tokenizer, word) for word in words]
            token_ids = tuple(token_id for word in spelled for token_id in word)
            lengths = tuple(map(len, spelled))
            params = replaced(params, cls.__name__, words=words)
        return replaced(
            params, cls.__name__, token_ids=token_ids, lengths=lengths, eos_token_ids=ends
        )

    @classmethod
    def _words(cls, params: Any, tokenizer: Any) -> _Words:
        given = params.token_ids, params.lengths
        if params.words is None:
            return _words_of(*given)
        vocabulary = served_vocabulary(cls.__name__, "words", tokenizer)
        return _words_of(*given, params.words, vocabulary)

    def start(self, request: Request) -> _Progress:
        """Begin with no word."""
        return _Progress(self._words(request.params, request.tokenizer))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        request.state.read(token_ids)

    def fork(self, request: Request) -> _Progress:
        """Copy which words there are."""
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
        """Say how much is missing."""
        return f"{request.state.missing} tokens of the words are missing"
