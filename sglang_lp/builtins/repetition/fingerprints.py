"""All sequences of one length in a text, found by fingerprint."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_lp.builtins.prompt.prompts import Numbers


#: Fewest numbers that torch sorts faster than numpy.
_MANY = 1024


class Fingerprints:
    """Fingerprints of sequences of tokens.

    A fingerprint is the sum of the scattered tokens, each times a power of a number (Karp and
    Rabin, 1987, doi 10.1147/rd.312.0249), modulo 2 ** 64. Without scattering a text could be made
    whose fingerprints are equal for every number, because powers of odd numbers differ by many
    powers of two.

    Args:
        longest: Length of the longest sequence.
        drawn: Two odd numbers of 64 bits from :func:`draw`: the key by which tokens are scattered,
            and the number whose powers are taken.
    """

    __slots__ = ("_factor", "_key", "_weights")

    def __init__(self, longest: int, drawn: tuple[int, int]) -> None:
        import numpy as np

        self._key, self._factor = np.uint64(drawn[0]), drawn[1]
        self._weights = _powers(self._factor, longest)

    def of(self, tokens: array[int]) -> int:
        """Return the fingerprint of one sequence."""
        import numpy as np

        scattered = self._scattered(np.frombuffer(tokens, dtype=np.int64))
        return int((scattered @ self._weights[: len(tokens)]).view("i8"))

    def of_all(self, tokens: Numbers, lengths: Sequence[int]) -> Iterator[Numbers]:
        """Yield for each length the fingerprints of all sequences in a text, in new arrays."""
        import numpy as np

        size = len(tokens)
        sums = np.zeros(size + 1, dtype=np.uint64)
        scattered = self._scattered(tokens)
        scattered *= _powers(self._factor, size)  # in place, as below: a fresh array is cleared
        np.cumsum(scattered, out=sums[1:])
        inverse = _powers(pow(self._factor, -1, 1 << 64), size + 1)
        for length in lengths:
            found = sums[length:] - sums[: max(0, size + 1 - length)]
            found *= inverse[: len(found)]
            yield found.view("i8")

    def _scattered(self, tokens: Numbers) -> Any:
        """Return a number of 64 bits for each token: equal differences do not stay equal."""
        import numpy as np

        found = tokens.view(np.uint64) * self._key
        found ^= found >> np.uint64(32)
        return found


class Sequences:
    """All sequences of one length in a text, in the order of their fingerprints.

    They are sorted once, as plain numbers: the index at which a sequence begins replaces the lowest
    bits of its fingerprint.

    Args:
        fingerprints: Computes the fingerprint of a sequence to find.
        found: The fingerprints of the text's sequences; overwritten.
        length: Tokens of a sequence.

    Attributes:
        firsts: For each sequence, in order, whether it is the first with its fingerprint.
    """

    __slots__ = ("_bits", "_fingerprints", "_length", "_sorted", "firsts")

    def __init__(self, fingerprints: Fingerprints, found: Numbers, length: int) -> None:
        import numpy as np

        self._fingerprints, self._length = fingerprints, length
        self._bits = bits = len(found).bit_length()
        found >>= bits
        found <<= bits
        found |= np.arange(len(found))
        self._sorted = found = in_order(found)
        prints = found >> bits
        self.firsts = np.ones(len(found), dtype=bool)
        np.not_equal(prints[1:], prints[:-1], out=self.firsts[1:])

    def are_told_apart(self, tokens: Numbers) -> bool:
        """Tell whether sequences with equal fingerprints are equal."""
        import numpy as np

        if self.firsts.all():
            return True
        ends = self.ends(slice(None))
        same = ~self.firsts[1:]
        before = np.full(len(tokens) + 1, -1)
        before[ends[1:][same]] = ends[:-1][same]
        (others,) = (before >= 0).nonzero()
        ones = before[others]
        for _ in range(self._length):
            ones, others = ones - 1, others - 1
            if not np.array_equal(tokens[ones], tokens[others]):
                return False
            # The rest of a pair was already compared if the sequences that end here are a pair.
            rest = before[others] != ones
            ones, others = ones[rest], others[rest]
            if not len(ones):
                break
        return True

    def ends(self, which: Any) -> Numbers:
        """Return the indices after some sequences; those of equal sequences ascend.

        Args:
            which: An index for an array of all sequences in order: a slice, or a mask.
        """
        found: Numbers = self._sorted[which] & ((1 << self._bits) - 1)
        found += self._length
        return found

    def few_ends(self, begin: int, stop: int) -> list[int]:
        """Return the indices after the sequences from ``begin`` to before ``stop``, as a list."""
        mask, length = (1 << self._bits) - 1, self._length
        return [(packed & mask) + length for packed in self._sorted.data[begin:stop]]

    def find(self, tokens: array[int]) -> tuple[int, int]:
        """Return where the sequences with the fingerprint of these tokens begin and stop."""
        bits, found = self._bits, self._sorted.data
        if not len(found):
            return 0, 0
        key = self._fingerprints.of(tokens) >> bits << bits
        begin = bisect_left(found, key)
        return begin, bisect_left(found, key + (1 << bits), begin)


def draw(prompt: bytes, turn: int) -> tuple[int, int]:
    """Return two odd numbers that depend on every byte of a text, equal on all ranks of a model."""
    drawn = blake2b(prompt, digest_size=16, salt=turn.to_bytes(8, "little")).digest()
    key, factor = (int.from_bytes(half, "little") for half in (drawn[:8], drawn[8:]))
    return key | 1, factor >> 3 << 3 | 5  # 5 modulo 8 has the most different powers


def in_order(numbers: Numbers) -> Numbers:
    """Return numbers in ascending order; many are sorted by torch (benchmarks/bounds)."""
    import numpy as np
    import torch

    if len(numbers) < _MANY:
        return np.sort(numbers)
    return torch.from_numpy(numbers).sort().values.numpy()


def _powers(factor: int, many: int) -> Any:
    """Return the first powers of a number modulo 2 ** 64, from its zeroth on."""
    import numpy as np

    powers = np.full(many, factor, dtype=np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, out=powers)
