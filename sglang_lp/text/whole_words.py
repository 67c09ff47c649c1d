"""Words that never appear in an answer as whole words, whichever tokens would spell them.

One character later it is known whether ``foo`` was a word: ``foo.`` contains it, ``food`` does not.
A word may therefore be written to its end. Then only a word character may follow: every token that
begins otherwise is banned, and so is the end of the answer. A token that contains a word and the
character after it is always banned.

The state is the suffix of the output from the earliest place where a word may have begun. It has
one character before that place, a space or an ``x``, for the class of the preceding character.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from sglang_lp.caches import KeptIds
from sglang_lp.edits.ids import Ids
from sglang_lp.errors import RequestError, refusing, shown
from sglang_lp.text.bans import for_each_text, sorted_texts
from sglang_lp.text.byte_runs import BROKEN
from sglang_lp.text.encoding import served_vocabulary, without
from sglang_lp.text.utf8 import SHRINKS, folded, lacking, unfinished
from sglang_lp.text.word_edges import edges_of, is_word, may_become_word

if TYPE_CHECKING:
    import numpy as np

    from sglang_lp.text.vocabulary import Vocabulary

#: A word character and another character, where only the class matters.
_WORD, _OTHER = b"x", b" "


def prepare(vocabulary: Vocabulary) -> None:
    """Build the tables that every list of words needs, so that no request waits for them."""
    for pieces in (vocabulary.exact, vocabulary.folded):
        edges_of(pieces)


def whole_words(  # noqa: PLR0913 - as of banned_texts
    processor: str,
    name: str,
    tokenizer: Any,
    texts: tuple[str, ...],
    *,
    ignore_case: bool,
    spared: tuple[int, ...] = (),
) -> tuple[WholeWords, ...]:
    """Return the compiled ban of whole words, for each text that a client may get.

    As :func:`sglang_lp.text.banned.banned_texts`; the name of any special token can be next to a
    word.

    Args:
        processor: The processor's class name, for the message.
        name: The parameter's name, for the message.
        tokenizer: The served model's, or ``None``.
        texts: At least one, each a character or more.
        ignore_case: Whether words are equal if ``str.casefold`` makes them equal.
        spared: Special tokens whose names no client gets.

    Raises:
        InvalidParameter: The model cannot write a word, or the bytes of its tokens are unknown.
    """
    vocabulary = served_vocabulary(processor, name, tokenizer)
    with refusing(processor, name):
        return for_each_text(
            WholeWords,
            vocabulary,
            texts,
            ignore_case=ignore_case,
            spared=spared,
            meets_names=bool(vocabulary.names),
        )


class WholeWords:
    """A compiled ban: the tokens that would make one of several words a whole word.

    Attributes:
        always: The tokens that contain a whole word, whatever the output is, in order.
        start: The state before the first token.
    """

    start = _OTHER

    def __init__(
        self,
        vocabulary: Vocabulary,
        texts: tuple[str, ...],
        *,
        ignore_case: bool,
        spared: tuple[int, ...] = (),
    ) -> None:
        import numpy as np

        self._spared = spared
        self._vocabulary = vocabulary
        self._ignore_case = ignore_case
        self._pieces = pieces = vocabulary.folded if ignore_case else vocabulary.exact
        self._edges = edges = edges_of(pieces)
        self._texts = sorted_texts(pieces, texts, ignore_case=ignore_case)
        self._words = frozenset(self._texts)
        self._longest = max(map(len, self._texts))
        self._characters = frozenset(b"".join(self._texts).decode())
        #: Beginnings of words, themselves included.
        self._beginnings = {text[:end] for text in self._texts for end in range(1, len(text) + 1)}
        place, token, end = pieces.places_of(self._texts)
        inside = place - edges.starts[token]
        known = (end < edges.starts[token] + pieces.lengths[token]) & edges.opens[end]
        at_head = (inside == edges.heads[token]) & (inside > 0)
        first = known & (inside == 0)
        bounded = known & (inside > 0) & edges.closes[place] & ~at_head
        #: Tokens that begin with a word and continue with no letter.
        self._first = np.unique(token[first])
        #: Tokens that do so after the rest of a character.
        self._after_head = np.unique(token[known & at_head])
        self.always: Sequence[int] = without(np.unique(token[bounded]).astype(np.int64), spared)
        #: Tokens that begin with no letter, or with a letter that a wrong byte can spoil.
        open_first = edges.opens[edges.starts]
        open_first[[*vocabulary.byte_runs.ids]] = True
        self._no_letter = np.flatnonzero((pieces.lengths > 0) & open_first)
        if len(self._no_letter) == len(pieces):
            raise RequestError(
                "expected a model whose tokens begin with letters, which whole words need; leave "
                "out whole_words"
            )
        self._after_word: dict[int, Iterable[int]] = {}
        self._kept: KeptIds[array[int]] = KeptIds()

    def begin(self, prompt_ids: Sequence[int]) -> bytes:
        """Return the state after a prompt, in which a word may begin.

        Args:
            prompt_ids: The prompt. A special token or a pad value of an image ends every word.
        """
        tokens = self._vocabulary.tokens
        last: list[int] = []
        length, enough = 0, self._longest * (SHRINKS if self._ignore_case else 1) + 4
        for token_id in reversed(prompt_ids):
            token = tokens[token_id] if 0 <= token_id < len(tokens) else b""
            if not token or length > enough:
                break
            last.append(token_id)
            length += len(token)
        return self._remembered(reduce(self._vocabulary.byte_runs.joined, reversed(last), _OTHER))

    def step(self, end: bytes, token_id: int) -> bytes:
        """Return the state after one more token.

        Args:
            end: The state before it.
            token_id: A special token changes nothing.
        """
        text = self._vocabulary.byte_runs.joined(end, token_id)
        return end if text == end else self._remembered(text)

    def after_word(self, end: bytes, vocab_size: int) -> Iterable[int] | None:
        """Return the tokens that begin with no letter, if a word has just been written.

        Args:
            end: The state.
            vocab_size: Number of logits: tokenizers may have more tokens.

        Returns:
            ``None`` if no word was just written. Empty inside a character, which ``completing``
            handles.
        """
        whole = len(end) - unfinished(end)
        if not any(end[start:whole] in self._words for start in self._starts(end, whole)):
            return None
        if whole < len(end):
            return ()
        found = self._after_word.get(vocab_size)
        if found is None:
            ids = array("q", self._no_letter[self._no_letter < vocab_size].tobytes())
            found = self._after_word[vocab_size] = Ids(ids) if ids else ids
        return found

    def completing(self, end: bytes) -> Sequence[int]:
        """Return the tokens that may not come now, in addition to ``always`` and ``after_word``.

        Args:
            end: The state.

        Raises:
            RequestError: All tokens make a whole word.
        """
        return self._kept.of(end, self._completing)

    def _completing(self, end: bytes) -> array[int]:
        return without(self._tokens_completing(end), self._spared)

    def _remembered(self, text: bytes) -> bytes:
        if text.endswith(BROKEN):
            return BROKEN  # until the run of bytes ends
        if self._ignore_case:
            text = folded(text)
        whole = len(text) - unfinished(text)
        for start in self._starts(text, whole):
            if start < whole and text[start:whole] in self._beginnings:
                return _OTHER + text[start:]
        last = text[:whole].decode("utf-8", "surrogateescape")[-1:]
        return (_WORD if last and is_word(last) else _OTHER) + text[whole:]

    def _starts(self, text: bytes, whole: int) -> Iterator[int]:
        """Yield the indices at which a word may begin: after each character that is no letter."""
        place, floor = 0, max(1, whole - self._longest)
        for character in text[:whole].decode("utf-8", "surrogateescape"):
            place += len(character.encode("utf-8", "surrogateescape"))
            if place >= floor and not is_word(character):
                yield place

    def _tokens_completing(self, end: bytes) -> np.ndarray:
        """Return the tokens that make a begun or a written word a whole word, in order."""
        import numpy as np

        part = end[len(end) - unfinished(end) :]
        whole = len(end) - len(part)
        starts = [*self._starts(end, whole)]
        begun = [end[start:whole] for start in starts if end[start:whole] in self._beginnings]
        written = any(one in self._words for one in begun)
        found = np.zeros(len(self._pieces.of), dtype=np.bool_)
        if part:
            self._ban_after(end, part, found, written=written)
        else:
            found[self._after_head] = True
            if whole in starts:
                found[self._first] = True
            for beginning in begun:
                self._ban_remaining(beginning, found)
        banned = found.copy()
        banned[[*self.always]] = True
        if written and not part:
            banned[self._no_letter] = True
        if int(banned.sum()) == len(self._pieces):
            word = (begun or self._texts)[0]
            raise RequestError(
                f"after {shown(end[1:].decode(errors='replace'))} every token of the model "
                f"completes a banned whole word, such as {shown(word.decode())}"
            )
        return np.flatnonzero(found)

    def _ban_after(self, end: bytes, part: bytes, found: np.ndarray, *, written: bool) -> None:
        """Ban the tokens that may not follow an unfinished character."""
        # A token that does not continue the character breaks it, so it is no letter.
        found[self._first] = True
        if written:
            found[self._pieces.lengths > 0] = True
        checked = {*self._after_head.tolist()}
        for head, ids in self._pieces.finishing[lacking(part)].items():
            character = (part + head).decode(errors="replace")
            if self._ignore_case:
                character = character.casefold()
            if written or not self._characters.isdisjoint(character):
                checked.update(ids)
        known = len(end) - len(part)
        for token_id in checked:
            found[token_id] = self._breaks(end + self._vocabulary.tokens[token_id], known)

    def _ban_remaining(self, beginning: bytes, found: np.ndarray) -> None:
        """Ban the tokens that complete a begun word and continue with no letter."""
        edges, pieces, length = self._edges, self._pieces, len(beginning)
        first = bisect_left(self._texts, beginning)
        last = bisect_right(self._texts, beginning, first, key=lambda text: text[:length])
        for text in self._texts[first:last]:
            if rest := text[length:]:
                ids = pieces.starting_with(rest)
                after = edges.starts[ids] + len(rest)
                ids, after = ids[(longer := pieces.lengths[ids] > len(rest))], after[longer]
                found[ids[edges.opens[after]]] = True

    def _breaks(self, text: bytes, known: int) -> bool:
        """Tell whether a text contains a whole word that the state did not.

        Args:
            text: The state and a token.
            known: Length of the whole characters of the state.
        """
        if self._ignore_case:
            text = text[:known] + folded(text[known:])
        tail = unfinished(text)
        whole = len(text) - tail
        places, place = [0], 0
        others = [True]
        for character in text[:whole].decode("utf-8", "surrogateescape"):
            place += len(character.encode("utf-8", "surrogateescape"))
            places.append(place)
            others.append(not is_word(character))
        # For each place, whether the next character is no letter.
        after = [*others[1:], bool(tail) and not may_become_word(text[whole:])]
        for i, start in enumerate(places[1:], 1):
            if others[i]:
                for j in range(i + 1, len(places)):
                    if places[j] >= known and after[j] and text[start : places[j]] in self._words:
                        return True
        return False
