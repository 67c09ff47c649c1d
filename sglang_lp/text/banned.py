"""Texts that never appear in an answer, whichever tokens would spell them.

A text can only be completed inside the next token. A token completes a text in one of two ways:

- it contains the text, whatever the output is;
- a suffix of the output is a prefix of the text, and the token starts with the rest.

The state is therefore the longest suffix of the output that is a prefix of any text.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp.caches import KeptIds, shared_by_copies
from sglang_lp.errors import RequestError, refusing, shown
from sglang_lp.text.bans import for_each_text, sorted_texts
from sglang_lp.text.encoding import served_vocabulary, without
from sglang_lp.text.utf8 import SHRINKS, folded, lacking, unfinished

if TYPE_CHECKING:
    import numpy as np

    from sglang_lp.text.vocabulary import Vocabulary


def banned_texts(  # noqa: PLR0913 - most have a default
    processor: str,
    name: str,
    tokenizer: Any,
    texts: tuple[str, ...],
    *,
    ignore_case: bool = False,
    spared: tuple[int, ...] = (),
) -> tuple[BannedTexts, ...]:
    """Return the compiled ban of texts, for each text that a client may get.

    A client may get the answer without special tokens (``skip_special_tokens``, SGLang's default),
    or with their names. There is a second ban only if a name can be part of a banned text. Requests
    with equal texts share the objects.

    Args:
        processor: The processor's class name, for the message.
        name: The parameter's name, for the message.
        tokenizer: The served model's, or ``None``.
        texts: At least one, each a character or more.
        ignore_case: Whether texts are equal if ``str.casefold`` makes them equal.
        spared: Special tokens whose names no client gets.

    Raises:
        InvalidParameter: The model cannot write a text, or can write nothing else, or the bytes of
            its tokens are unknown.
    """
    vocabulary = served_vocabulary(processor, name, tokenizer)
    with refusing(processor, name):
        return for_each_text(
            BannedTexts,
            vocabulary,
            texts,
            ignore_case=ignore_case,
            spared=spared,
            meets_names=_meets_names(vocabulary, texts, ignore_case=ignore_case),
        )


@shared_by_copies
def _meets_names(vocabulary: Vocabulary, texts: tuple[str, ...], *, ignore_case: bool) -> bool:
    return vocabulary.meets_names(map(str.encode, texts), ignore_case=ignore_case)


class BannedTexts:
    """A compiled ban: the tokens that would complete one of several texts.

    Attributes:
        always: The ids of the tokens that contain a text, in order.
        start: The state before the first token.
    """

    start = b""

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
        self._tokens = vocabulary.tokens
        self._ignore_case = ignore_case
        self._pieces = vocabulary.folded if ignore_case else vocabulary.exact
        #: A text that begins with another can only come after a prompt that ends with it.
        self._texts = sorted_texts(self._pieces, texts, ignore_case=ignore_case)
        self._whole = frozenset(self._texts)
        #: Where each text begins when all are joined.
        self._starts = np.cumsum([0, *map(len, self._texts)])
        self._longest = max(map(len, self._texts))
        self._characters = frozenset(b"".join(self._texts).decode()) if ignore_case else frozenset()
        self._beginnings = {text[:end] for text in self._texts for end in range(1, len(text))}
        joined = b"".join(self._texts)
        remaining = np.repeat(self._starts[1:], np.diff(self._starts)) - np.arange(len(joined))
        #: For each byte of the joined texts, the range of the tokens that start with the remaining
        #: bytes of its text, of which eight are compared.
        self._range_starts, self._range_stops = self._pieces.ranges_of(joined, remaining)
        self.always = without(self._pieces.containing(self._texts), spared)
        if len(self.always) == len(self._pieces):
            raise RequestError(
                "expected texts that leave the model something to write, but every token of it "
                f"holds one of them, such as {shown(min(self._texts, key=len).decode())}"
            )
        self._kept: KeptIds[array[int]] = KeptIds()

    def begin(self, prompt_ids: Sequence[int]) -> bytes:
        """Return the state after a prompt, in which a text may begin.

        Args:
            prompt_ids: The prompt. A special token or a pad value of an image ends every text.
        """
        last: list[bytes] = []
        length, enough = 0, self._longest * (SHRINKS if self._ignore_case else 1)
        for token_id in reversed(prompt_ids):
            token = self._tokens[token_id] if 0 <= token_id < len(self._tokens) else b""
            if not token or length >= enough:
                break
            last.append(token)
            length += len(token)
        return self._remembered(b"".join(reversed(last)))

    def step(self, end: bytes, token_id: int) -> bytes:
        """Return the state after one more token.

        Args:
            end: The state before it.
            token_id: A special token changes nothing: it is not in the text that the client gets.
        """
        tokens = self._tokens
        return self._remembered(end + tokens[token_id]) if token_id < len(tokens) else end

    def completing(self, end: bytes) -> Sequence[int]:
        """Return the tokens that would complete a text now, in addition to ``always``.

        Args:
            end: The state.

        Raises:
            RequestError: Every token would complete a text.
        """
        return self._kept.of(end, self._completing)

    def _completing(self, end: bytes) -> array[int]:
        found = without(self._tokens_completing(end), self._spared)
        if len(found) + len(self.always) >= len(self._pieces) and len(
            {*found, *self.always}
        ) == len(self._pieces):
            raise RequestError(
                f"after {shown(end.decode(errors='replace'))} every token of the model "
                f"completes a banned text, such as {shown(self._likely(end))}"
            )
        return found

    def _remembered(self, text: bytes) -> bytes:
        """Return the state after a text."""
        whole = len(text)
        if self._ignore_case:
            text = folded(text)
            whole = len(text) - unfinished(text)
        for start in range(max(0, whole - self._longest + 1), whole):
            if text[start:whole] in self._beginnings:
                return text[start:]
        return text[whole:]

    def _tokens_completing(self, end: bytes) -> np.ndarray:
        """Return the tokens that complete a begun text, in order."""
        if self._ignore_case and (length := unfinished(end)):
            return self._tokens_finishing(end[:-length], end[-length:])
        return self._pieces.ids_in(self._remaining_ranges(end))

    def _remaining_ranges(self, end: bytes) -> Iterator[tuple[int, int]]:
        """Yield the ranges of the tokens that start with the rest of a text."""
        for length in self._matched_prefix_lengths(end):
            beginning = end[-length:]
            first = bisect_right(self._texts, beginning)
            last = bisect_right(
                self._texts, beginning, first, key=lambda text: text[: len(beginning)]
            )
            places = self._starts[first:last] + length
            starts, stops = self._range_starts[places], self._range_stops[places]
            for index in (stops > starts).nonzero()[0].tolist():
                rest = self._texts[first + index][length:]
                # A token of fewer than eight bytes was compared as if zeros followed it.
                is_exact = len(rest) <= 8 and b"\0" not in rest  # noqa: PLR2004
                yield (starts[index], stops[index]) if is_exact else self._pieces.range_of(rest)

    def _matched_prefix_lengths(self, end: bytes) -> Iterator[int]:
        """Yield the lengths of the state's suffixes that are prefixes of a text, longest first."""
        for start in range(len(end)):
            if end[start:] in self._beginnings:
                yield len(end) - start

    def _tokens_finishing(self, end: bytes, unfinished_part: bytes) -> np.ndarray:
        """Return the tokens that complete a text by finishing an unfinished character."""
        import numpy as np

        prefix_lengths = [*self._matched_prefix_lengths(end)]
        ids = []
        missing = lacking(unfinished_part)
        for rest, token_ids in self._pieces.finishing[missing].items():
            try:
                character = (unfinished_part + rest).decode().casefold()
            except UnicodeDecodeError:
                continue
            if not self._characters.isdisjoint(character):
                head = character.encode()
                for token_id in token_ids:
                    text = end + head + self._pieces.of[token_id][missing:]
                    if self._completes(text, len(end), prefix_lengths):
                        ids.append(token_id)
        return np.array(sorted(ids), dtype=np.int64)

    def _likely(self, end: bytes) -> str:
        """Return a text with the longest prefix that is a suffix of this state."""
        length = next(self._matched_prefix_lengths(end), 0)
        return self._texts[bisect_right(self._texts, end[len(end) - length :])].decode()

    def _completes(self, text: bytes, known: int, prefix_lengths: Sequence[int]) -> bool:
        """Tell whether a banned text ends behind the first ``known`` bytes of a text.

        Args:
            text: The state and a token.
            known: Length of the state.
            prefix_lengths: Lengths of the suffixes of the state with which a banned text begins.
        """
        starts = (*(known - length for length in prefix_lengths), *range(known, len(text)))
        return any(
            text[start:stop] in self._whole
            for stop in range(known + 1, len(text) + 1)
            for start in starts
        )
