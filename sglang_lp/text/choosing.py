"""The tokens that continue an answer which is one of several token sequences, or texts.

A text counts whichever tokens spell it. A token continues a text if its bytes begin the rest of the
text, and tokens spell what follows. Every way to write a choice is therefore open, and no way leads
to a dead end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sglang_lp.caches import KeptIds, shared_by_copies
from sglang_lp.errors import RequestError, refusing, shown
from sglang_lp.text.automaton import Automaton, automaton_of
from sglang_lp.text.encoding import refuse_names, served_vocabulary

if TYPE_CHECKING:
    from sglang_lp.text.vocabulary import Vocabulary

#: Most bytes that the texts of one request may have together: they are compiled as it arrives.
MAX_BYTES = 8_192


class Choices(Protocol):
    """The choices of a request, and the places in them, each a number or the text so far."""

    #: The place before the first token.
    start: Any

    def step(self, place: Any, token_id: int) -> Any:
        """Return the place after one more token, ``None`` if it continues no choice."""

    def continuing(self, place: Any) -> Sequence[int]:
        """Return the tokens that continue a choice from here."""

    def is_complete(self, place: Any) -> bool:
        """Tell whether a choice ends here."""


class TokenChoices:
    """Token sequences to choose from."""

    start = 0

    def __init__(self, automaton: Automaton) -> None:
        self._children, self._complete = automaton.children, automaton.complete

    def step(self, place: int, token_id: int) -> int | None:
        """Return the state after one more token."""
        return self._children[place].get(token_id)

    def continuing(self, place: int) -> Sequence[int]:
        """Return the tokens that continue a sequence."""
        return [*self._children[place]]

    def is_complete(self, place: int) -> bool:
        """Tell whether a sequence ends here."""
        return self._complete[place]


class TextChoices:
    """Texts to choose from."""

    start = b""

    def __init__(self, vocabulary: Vocabulary, texts: Sequence[str]) -> None:
        """Check that the model can write each of them.

        Raises:
            RequestError: No tokens spell one.
        """
        self._vocabulary = vocabulary
        self._texts = sorted({text.encode() for text in texts})
        self._spelled = spelled_rests(vocabulary, texts)
        self._kept: KeptIds[Sequence[int]] = KeptIds()
        self.continuing(b"")  # where every request begins

    def step(self, place: bytes, token_id: int) -> bytes | None:
        """Return the text after one more token."""
        said = place + self._vocabulary.text([token_id])
        first = bisect_left(self._texts, said)
        if said == place or first == len(self._texts) or not self._texts[first].startswith(said):
            return None
        return said

    def continuing(self, place: bytes) -> Sequence[int]:
        """Return the tokens that continue a text."""
        return self._kept.of(place, self._tokens_continuing)

    def is_complete(self, place: bytes) -> bool:
        """Tell whether a text ends here."""
        at = bisect_left(self._texts, place)
        return at < len(self._texts) and self._texts[at] == place

    def _tokens_continuing(self, place: bytes) -> Sequence[int]:
        said = len(place)
        first = bisect_left(self._texts, place)
        last = bisect_right(self._texts, place, first, key=lambda text: text[:said])
        same_as, longest = self._vocabulary.exact.same_as, self._vocabulary.exact.longest
        pieces = {
            text[said:end]
            for text in self._texts[first:last]
            for end in range(said + 1, min(len(text), said + longest) + 1)
            if self._spelled is None or text[end:] in self._spelled
        }
        return sorted(token_id for piece in pieces for token_id in same_as(piece))


def spelled_rests(vocabulary: Vocabulary, texts: Sequence[str]) -> set[bytes] | None:
    """Return the rests of texts that tokens spell, or ``None`` where every byte is a token.

    Raises:
        RequestError: No tokens spell one of the texts.
    """
    if vocabulary.exact.single_bytes.issuperset("".join(texts).encode()):
        return None
    spelled = {b""}
    for text in texts:
        encoded = text.encode()
        ways = vocabulary.exact.usable_lengths(encoded)
        if not ways[0]:
            raise RequestError(
                f"expected texts that the served model can write, got {shown(text)}, which no "
                "tokens spell"
            )
        spelled.update(encoded[at:] for at, length in enumerate(ways) if length)
    return spelled


@shared_by_copies
def token_choices(token_ids: tuple[int, ...], lengths: tuple[int, ...]) -> TokenChoices:
    """Return the choices of requests with these sequences, made once for all of them."""
    return TokenChoices(automaton_of(token_ids, lengths))


def text_choices(processor: str, tokenizer: Any, texts: tuple[str, ...]) -> TextChoices:
    """Return the compiled choices of a request, one for each list of them.

    Args:
        processor: The processor's class name, for the message.
        tokenizer: The served model's, or ``None``.
        texts: At least one, each a character or more.

    Raises:
        InvalidParameter: The model cannot write one of them, or its tokens' bytes are unknown.
    """
    vocabulary = served_vocabulary(processor, "choices", tokenizer)
    refuse_names(processor, "choices", vocabulary, texts)
    with refusing(processor, "choices"):
        return _text_choices(vocabulary, texts)


@shared_by_copies
def _text_choices(vocabulary: Vocabulary, texts: tuple[str, ...]) -> TextChoices:
    return TextChoices(vocabulary, texts)
