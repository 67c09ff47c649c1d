"""The text of each token of an answer, in its context."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any, NamedTuple

from sglang_lp.text.vocabulary import vocabulary_of

__all__ = ["Piece", "Spelling"]


class Piece(NamedTuple):
    """The text of a token.

    Attributes:
        text: The text that the token adds. A character of several tokens belongs to the last of
            them. Empty for a special token.
        name: Name for a token without text: name of a special token, bytes of a part of a
            character, number of an unknown token. Otherwise empty.
        known: Whether the tokenizer has the token.
    """

    text: str
    name: str
    known: bool


class Spelling:
    """Spells the tokens of one tokenizer.

    Attributes:
        size: One more than the largest id; 0 without a tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Read a tokenizer of ``tokenizers`` or ``transformers``, or ``None``.

        Raises:
            RequestError: The bytes of its tokens cannot be determined.
        """
        self._tokenizer = tokenizer
        self._tokens: Sequence[bytes] = ()
        if tokenizer is not None:
            self._tokens = vocabulary_of(tokenizer).tokens
        self.size = len(self._tokens)

    def spell(self, token_ids: Sequence[int]) -> list[Piece]:
        """Return the text of each token of a sequence."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces: list[Piece] = []
        for token_id in token_ids:
            written = self._tokens[token_id] if 0 <= token_id < self.size else b""
            if written:
                text = decoder.decode(written)
                name = "" if text else " ".join(f"{byte:02x}" for byte in written)
                pieces.append(Piece(text, name, known=True))
            else:
                special = self._special(token_id)
                pieces.append(Piece("", special or f"token {token_id}", known=special is not None))
        if pieces and (rest := decoder.decode(b"", final=True)):
            pieces[-1] = pieces[-1]._replace(text=pieces[-1].text + rest)
        return pieces

    def name(self, token_id: int) -> str:
        """Return a name for a single token: its text with invisible characters escaped."""
        (piece,) = self.spell([token_id])
        text = piece.name or piece.text
        return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)

    def _special(self, token_id: int) -> str | None:
        if not 0 <= token_id < self.size:
            return None
        for method in ("id_to_token", "convert_ids_to_tokens"):
            if named := getattr(self._tokenizer, method, None):
                found: str | None = named(token_id)
                return found
        return None
