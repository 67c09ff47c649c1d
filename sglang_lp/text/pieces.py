"""One byte string for each token, searched by prefix, by content and by spelling."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


class Pieces:
    """The byte strings of all token ids, to be searched; an empty string is never found.

    Attributes:
        of: The byte string of each token id.
    """

    def __init__(self, of: Sequence[bytes]) -> None:
        import numpy as np

        self.of = of
        ids = [token_id for token_id, piece in enumerate(of) if piece]
        ids.sort(key=of.__getitem__)
        #: The byte strings in order, and their token ids.
        self._sorted = [of[token_id] for token_id in ids]
        self._ids = np.array(ids, dtype=np.int64)

    def __len__(self) -> int:
        """Return the number of byte strings that are not empty."""
        return len(self._sorted)

    def same_as(self, text: bytes) -> list[int]:
        """Return the ids of all tokens that are exactly this text."""
        start = self._first.get(text)
        if start is None:
            return []
        found: list[int] = self._ids[start : bisect_right(self._sorted, text, start)].tolist()
        return found

    def first_of(self, text: bytes) -> int:
        """Return the first id of the tokens that are exactly this text; at least one must exist."""
        return int(self._ids[self._first[text]])

    def starting_with(self, prefix: bytes) -> np.ndarray:
        """Return the ids of all tokens that start with these bytes, in no particular order.

        Returns:
            An int64 array, a view that must not be changed.
        """
        return self._ids[slice(*self.range_of(prefix))]

    def range_of(self, prefix: bytes) -> tuple[int, int]:
        """Return the range, in order of bytes, of the tokens that start with these bytes."""
        length = len(prefix)
        start = bisect_left(self._sorted, prefix)
        return start, bisect_right(self._sorted, prefix, start, key=lambda piece: piece[:length])

    def longest_at(self, text: bytes, place: int, allowed: int = -1) -> int:
        """Return the length of the longest token at a place in a text; 0 for none.

        Args:
            text: At least one byte longer than ``place``.
            place: The index.
            allowed: The lengths that count: bit 3 for 3 bytes.
        """
        by_start = self._lengths_from
        lengths = allowed & (
            by_start.get(text[place : place + 2]) or by_start.get(text[place : place + 1], 0)
        )
        while lengths:
            length = lengths.bit_length() - 1
            if text[place : place + length] in self._first:
                return length
            lengths -= 1 << length
        return 0

    def usable_lengths(self, text: bytes) -> list[int]:
        """Return, for each place in a text, the length of the longest usable token there.

        A token is usable if tokens spell the rest after it. Without such a token the length is 0.
        """
        all_lengths = (2 << self.longest) - 1
        found = [0] * len(text)
        usable = 1  # bit 3: tokens spell the text from 3 bytes after the place
        for place in reversed(range(len(text))):
            usable = usable << 1 & all_lengths
            found[place] = length = self.longest_at(text, place, usable)
            usable |= length > 0
        return found

    def ranges_of(self, joined: bytes, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ranges of many prefixes at once, by their first eight bytes.

        Args:
            joined: The texts that the prefixes are parts of, one after the other.
            lengths: For each position in ``joined`` the length of the prefix that starts there.

        Returns:
            For each position the start and the stop of the range of tokens that start with the
            first eight bytes of the prefix.
        """
        import numpy as np

        first, last = _bounds(_eights(joined), lengths)
        order = np.argsort(first)  # neighbours are searched for together
        starts = np.empty(len(first), dtype=np.int64)
        starts[order] = np.searchsorted(self._heads, first[order], "left")
        stops = starts.copy()
        filled = np.flatnonzero(self._heads[np.minimum(starts, len(self._heads) - 1)] <= last)
        stops[filled] = np.searchsorted(self._heads, last[filled], "right")
        return starts, np.maximum(starts, stops)

    def ids_in(self, ranges: Iterable[tuple[int, int]]) -> np.ndarray:
        """Return the ids of the tokens in any of several ranges, each once, ascending, int64."""
        import numpy as np

        found = np.zeros(len(self.of), dtype=np.bool_)
        for start, stop in ranges:
            found[self._ids[start:stop]] = True
        return np.flatnonzero(found)

    def containing(self, texts: Sequence[bytes]) -> np.ndarray:
        """Return the ids of all tokens that contain any of several texts, in order, each once.

        Args:
            texts: None of them empty. The search is fastest if no text begins with another.

        Returns:
            A new int64 array.
        """
        import numpy as np

        found = np.zeros(len(self.of), dtype=np.bool_)
        if texts:
            found[self.places_of(texts)[1]] = True
        return np.flatnonzero(found)

    def places_of(self, texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Find every occurrence of several texts inside a token.

        Args:
            texts: One or more, none of them empty.

        Returns:
            For each occurrence, in three arrays of integers: its index in the joined bytes of all
            tokens, the id of the token, and the index after the text.
        """
        import numpy as np

        eights, (heads, places) = self._eights, self._places
        starts = np.cumsum([0, *map(len, texts)])
        lengths = np.diff(starts)
        wanted = _eights(b"".join([*texts, b"\0"]))  # one more, to compare to the end
        first, last = _bounds(wanted[starts[:-1]], lengths)
        low, high = np.searchsorted(heads, first, "left"), np.searchsorted(heads, last, "right")
        text = np.repeat(np.arange(len(texts)), high - low)
        # One after the other, the numbers from each low to its high.
        skipped = np.repeat(np.cumsum(high - low) - high, high - low)
        place = places[np.arange(len(text)) - skipped]
        for offset in range(0, int(lengths.max()), 8):
            left = lengths[text] - offset
            first, last = _bounds(wanted[starts[text] + np.minimum(offset, lengths[text])], left)
            here = eights[np.minimum(place + offset, len(eights) - 1)]
            same = (left <= 0) | ((first <= here) & (here <= last))
            text, place = text[same], place[same]
        token, after = self._holder[place], place + lengths[text]
        inside = after <= self._ends[token]
        return place[inside], token[inside], after[inside]

    def prepare(self) -> None:
        """Build the tables of searches."""
        for name in ("alphabet", "lengths", "finishing"):
            getattr(self, name)  # is kept from then on
        for name in ("_eights", "_ends", "_heads", "_holder", "_places"):
            getattr(self, name)

    def prepare_to_spell(self) -> None:
        """Build the tables of :meth:`same_as` and :meth:`usable_lengths`."""
        for name in ("longest", "single_bytes", "_first", "_lengths_from"):
            getattr(self, name)

    @cached_property
    def lengths(self) -> np.ndarray:
        """The number of bytes of each token."""
        import numpy as np

        return np.array([*map(len, self.of)], dtype=np.int64)

    @cached_property
    def longest(self) -> int:
        """Most bytes of a token."""
        return int(self.lengths.max(initial=0))

    @cached_property
    def single_bytes(self) -> frozenset[int]:
        """The bytes that are a token each."""
        return frozenset(byte for byte in range(256) if bytes([byte]) in self._first)

    @cached_property
    def alphabet(self) -> frozenset[int]:
        """The bytes that occur in any token."""
        return frozenset(self._joined)

    def ending_with_a_lead(self) -> np.ndarray:
        """Return the ids of the tokens that end with too few bytes after a character's first."""
        import numpy as np

        joined = np.frombuffer(self._joined, dtype=np.uint8)
        found = np.zeros(len(self.of), dtype=np.bool_)
        for length, lead in ((1, 0xC0), (2, 0xE0), (3, 0xF0)):
            long = np.flatnonzero(self.lengths >= length)
            found[long] |= joined[self._ends[long] - length] >= lead
        return np.flatnonzero(found)

    @cached_property
    def finishing(self) -> tuple[dict[bytes, list[int]], ...]:
        """The tokens that continue an unfinished character.

        For each number of bytes that the character lacks, 0 to 3: from the first so many bytes of
        tokens, fewer if a token is shorter, to the ids of these tokens.
        """
        found: tuple[dict[bytes, list[int]], ...] = ({}, {}, {}, {})
        for start, stop in map(self.range_of, (bytes([byte]) for byte in range(0x80, 0xC0))):
            for token_id in self._ids[start:stop].tolist():
                piece = self.of[token_id]
                for missing in (1, 2, 3):
                    found[missing].setdefault(piece[:missing], []).append(token_id)
        return found

    @cached_property
    def _first(self) -> dict[bytes, int]:
        """The first place of each byte string in order."""
        places = range(len(self._sorted) - 1, -1, -1)
        return dict(zip(reversed(self._sorted), places, strict=True))

    @cached_property
    def _lengths_from(self) -> dict[bytes, int]:
        """The lengths of the tokens that two bytes, or one, start with: bit 3 for 3 bytes."""
        import numpy as np

        found = {bytes([byte]): 2 for byte in self.single_bytes}
        pairs = (self._heads >> 48) << 32 | self.lengths[self._ids].astype(np.uint64)
        for pair in np.unique(pairs).tolist():
            length = pair & 0xFFFFFFFF
            if length > 1:
                start = (pair >> 32).to_bytes(2, "big")
                found[start] = found.get(start) or found.get(start[:1], 0)
                found[start] |= 1 << length
        return found

    @cached_property
    def _joined(self) -> bytes:
        """The bytes of all tokens, one after the other."""
        return b"".join(self.of)

    @cached_property
    def _heads(self) -> np.ndarray:
        """The first eight bytes of each byte string, in order."""
        first, _ = _bounds(self._eights[(self._ends - self.lengths)], self.lengths)
        heads: np.ndarray = first[self._ids]
        return heads

    @cached_property
    def _ends(self) -> np.ndarray:
        """The index after each token when all are joined."""
        import numpy as np

        return np.cumsum(self.lengths)

    @cached_property
    def _holder(self) -> np.ndarray:
        """Token id that owns each byte of the joined vocabulary."""
        import numpy as np

        return np.repeat(np.arange(len(self.of), dtype=np.int32), self.lengths)

    @cached_property
    def _eights(self) -> np.ndarray:
        """The eight bytes from each byte of the joined vocabulary on, and a last zero."""
        return _eights(self._joined + b"\0")

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """The entries of ``_eights`` in order, and their indices."""
        import numpy as np

        order = np.argsort(self._eights[:-1])
        return self._eights[order], order.astype(np.int32)


def _eights(joined: bytes) -> np.ndarray:
    """Return, for each byte, the eight bytes from there on, as one number."""
    import numpy as np

    shape = (len(joined),)
    view: np.ndarray = np.ndarray(shape, ">u8", buffer=joined + bytes(8), strides=(1,))
    return view.astype(np.uint64)


def _bounds(eights: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and largest eight bytes with the first ``lengths`` bytes of these."""
    import numpy as np

    free = np.array([(1 << (8 * (8 - length))) - 1 for length in range(9)], dtype=np.uint64)
    mask = free[np.clip(lengths, 0, 8)]
    return eights & ~mask, eights | mask
