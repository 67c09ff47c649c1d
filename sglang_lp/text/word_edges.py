"""Where words can begin and end in the tokens of a vocabulary.

A word character is a letter, a mark, a number or a connector of Unicode, or a joiner. Bytes that
make no character are not word characters.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

from sglang_lp.text.utf8 import becoming, unfinished

if TYPE_CHECKING:
    import numpy as np

    from sglang_lp.text.pieces import Pieces

_JOINERS = (0x200C, 0x200D)


@lru_cache(maxsize=1)
def _word_numbers() -> np.ndarray:
    """Return for each code point whether the character is a word character."""
    import numpy as np

    # Two letters each, such as "Lu".
    categories = "".join(map(unicodedata.category, map(chr, range(0x110000)))).encode()
    kinds = np.frombuffer(categories, dtype=">u2")
    found: np.ndarray = np.isin(kinds >> 8, [*b"LMN"]) | (kinds == int.from_bytes(b"Pc", "big"))
    found[[*_JOINERS]] = True
    return found


def is_word(character: str) -> bool:
    """Tell whether a character is a word character."""
    return bool(_word_numbers()[ord(character)])


@lru_cache(maxsize=4096)
def may_become_word(beginning: bytes) -> bool:
    """Tell whether an unfinished character can become a word character."""
    numbers = becoming(beginning)
    return bool(_word_numbers()[numbers.start : numbers.stop].any())


class Edges:
    """For each byte of all tokens, whether a word can end before it or begin after it.

    Attributes:
        opens: At the first byte of a character: whether it is no word character. True for bytes
            that make no character, False for an unfinished character that can become a word
            character.
        closes: At the byte after a character: whether that character is no word character.
        starts: The index of each token's first byte.
        heads: The number of bytes at the start of each token that only continue a character.
    """

    def __init__(self, pieces: Pieces) -> None:
        import numpy as np

        words = _word_numbers()
        texts = [piece.decode("utf-8", "surrogateescape") for piece in pieces.of]
        joined = "".join(texts).encode("utf-32-le", "surrogatepass")
        numbers = np.frombuffer(joined, dtype=np.uint32)
        escaped = (numbers >= 0xDC80) & (numbers < 0xDD00)  # noqa: PLR2004 - one byte each
        sizes = 1 + (numbers >= 0x80).astype(np.int64) + (numbers >= 0x800)  # noqa: PLR2004
        sizes += numbers >= 0x10000  # noqa: PLR2004
        sizes[escaped] = 1
        ends = np.cumsum(sizes)
        other = ~words[numbers]
        lengths = np.array([*map(len, pieces.of)], dtype=np.int64)
        token_ends = np.cumsum(lengths)
        total = int(token_ends[-1]) if len(token_ends) else 0
        self.opens = np.ones(total + 1, dtype=np.bool_)
        self.closes = np.ones(total + 1, dtype=np.bool_)
        self.opens[ends - sizes] = other
        self.closes[ends] = other
        self.starts = token_ends - lengths
        self.heads = np.zeros(len(lengths), dtype=np.int64)
        for token_id in np.unique(np.repeat(np.arange(len(texts)), [*map(len, texts)])[escaped]):
            token = pieces.of[token_id]
            if (length := unfinished(token)) and may_become_word(token[-length:]):
                self.opens[token_ends[token_id] - length] = False
            self.heads[token_id] = len(token) - len(token.lstrip(_CONTINUING))


_CONTINUING = bytes(range(0x80, 0xC0))


@lru_cache(maxsize=8)
def edges_of(pieces: Pieces) -> Edges:
    """Return the edges of byte strings, made once."""
    return Edges(pieces)
