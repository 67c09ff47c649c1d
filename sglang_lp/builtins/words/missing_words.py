"""The words that an answer must still hold, found as tokens and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sglang_lp.caches import shared_by_copies
from sglang_lp.text.automaton import Automaton, automaton_of, split
from sglang_lp.text.byte_runs import BROKEN, NO_RUNS

if TYPE_CHECKING:
    from sglang_lp.text.vocabulary import Vocabulary


class _Word(NamedTuple):
    """One of the words.

    Attributes:
        token_ids: Its tokens.
        path: From the states of its prefixes, itself included, to their numbers of tokens.
        end: The state in which it is complete.
    """

    token_ids: Sequence[int]
    path: Mapping[int, int]
    end: int


class _Texts:
    """The words as texts, to find them whichever tokens spell them.

    Attributes:
        automaton: Automaton of the texts, byte by byte.
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


class Words:
    """The compiled words of a request, shared by its copies.

    Attributes:
        automaton: Automaton of the words' tokens.
        byte_runs: Byte runs of the vocabulary that spells the texts.
        words: Each of them once, in the given order.
        lengths: From the state in which a word is complete to its number of tokens.
        total: Number of tokens of all words together.
        spare: Number of further tokens that may be needed before the first word.
        telling: The tokens that begin a word.
        texts: The words as texts, if they were given as texts.
        spelled: From each state of ``texts`` in which a word is complete to the state in which its
            tokens are.
    """

    __slots__ = (
        "automaton", "byte_runs", "lengths", "spare", "spelled", "telling", "texts", "total",
        "words",
    )  # fmt: skip

    def __init__(
        self,
        token_ids: tuple[int, ...],
        lengths: tuple[int, ...],
        texts: tuple[str, ...],
        vocabulary: Vocabulary | None,
    ) -> None:
        self.automaton = automaton_of(token_ids, lengths)
        self.telling = frozenset(self.automaton.children[0])
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
        """Return the states of a word."""
        children, state = self.automaton.children, 0
        path = {0: 0}
        for begun, token_id in enumerate(token_ids, 1):
            state = children[state][token_id]
            path[state] = begun
        return _Word(token_ids, path, state)


@shared_by_copies
def words_of(
    token_ids: tuple[int, ...],
    lengths: tuple[int, ...],
    texts: tuple[str, ...] = (),
    vocabulary: Vocabulary | None = None,
) -> Words:
    """Return the words of all requests with these parameters."""
    return Words(token_ids, lengths, texts, vocabulary)


class MissingWords:
    """Which words the output holds, and how far it has written the next missing one.

    Attributes:
        words: The words.
        missing: Number of tokens of the missing words together.
        is_open: Whether a word counts only if the run of byte tokens that it ends goes no further.
    """

    __slots__ = ("_held", "_next", "_said", "_state", "_unsettled", "is_open", "missing", "words")

    def __init__(self, words: Words) -> None:
        self.words = words
        self.missing = words.total
        self.is_open = False
        #: The state of the output, and a bit for each state of a prefix of words in it. A number,
        #: because it is copied for every drafted token.
        self._state = 0
        self._held = 1
        #: The state of the output as text, and the unfinished end of its last run of bytes.
        self._said = 0
        self._unsettled = b""
        #: Index of the word that is forced next.
        self._next = 0

    def read(self, token_ids: Sequence[int]) -> None:
        """Read generated tokens."""
        words = self.words
        automaton, lengths, texts = words.automaton, words.lengths, words.texts
        for token_id in token_ids:
            if texts is not None:  # first: a text contains every word that its tokens do
                self._read_text(texts, token_id)
            # A broken run contains no word and begins none.
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

    @property
    def is_settled(self) -> bool:
        """Whether the output ends with no part of a word, and with no run of bytes."""
        return not (self._state or self._said or self._unsettled or self.is_open)

    def begun(self) -> int:
        """Return how many tokens of the next missing word the output ends with."""
        shorter, path = self.words.automaton.shorter, self.words.words[self._next].path
        state = self._state
        while state not in path:
            state = shorter[state]
        return path[state]

    def next_of(self, begun: int) -> int | None:
        """Return the token that continues the word, ``None`` if a run of bytes must end before."""
        token_id = self.words.words[self._next].token_ids[begun]
        if self._unsettled and not begun and token_id in self.words.byte_runs.ids:
            return None
        return token_id
