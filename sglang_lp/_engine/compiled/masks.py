"""Token masks: which tokens of the vocabulary are possible, one byte for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sglang_lp.edits.ids import Ids, tensor_of

if TYPE_CHECKING:
    import torch


class TokenMask:
    """The tokens that edits leave possible, computed on first use.

    Args:
        vocab_size: Number of logits in a row.
        allowed: The only possible ids, or ``None`` if every id is.
        banned: Lists of ids that are not possible.
    """

    __slots__ = ("__weakref__", "_allowed", "_banned", "_bytes", "_count", "_counts", "_vocab_size")

    def __init__(
        self,
        vocab_size: int,
        allowed: Ids | Sequence[int] | torch.Tensor | None,
        banned: Sequence[Ids | list[int]],
    ) -> None:
        self._vocab_size = vocab_size
        self._allowed = allowed
        self._banned = banned
        self._bytes: bytearray | None = None
        self._count = -1
        #: Number of possible tokens together with another mask.
        self._counts: WeakKeyDictionary[TokenMask, int] | None = None

    @property
    def bytes(self) -> bytearray:
        """One byte for each token of the vocabulary: 1 if it is possible, else 0."""
        if self._bytes is None:
            allowed = () if self._allowed is None else (self._allowed,)
            self._bytes = mask_bytes(self._vocab_size, allowed, self._banned)
        return self._bytes

    @property
    def count(self) -> int:
        """Number of possible tokens."""
        if self._count < 0:
            self._count = count_ones(self.bytes)
        return self._count

    @property
    def min_count(self) -> int:
        """A lower bound of :attr:`count` that does not read the vocabulary."""
        if self._count >= 0:
            return self._count
        return 0 if self._allowed is not None else self._vocab_size - sum(map(len, self._banned))

    def count_with(self, other: TokenMask | None) -> int:
        """Return the number of tokens that both this mask and another mask leave possible."""
        if other is None:
            return self.count
        if self._counts is None:
            self._counts = WeakKeyDictionary()
        found = self._counts.get(other)
        if found is None:
            found = self._counts[other] = count_ones(intersection(self.bytes, other.bytes))
        return found

    def permits(self, token_id: int) -> bool:
        """Tell whether a token is possible."""
        return bool(self.bytes[token_id])


def mask_bytes(
    vocab_size: int,
    allowed: Iterable[Ids | Sequence[int] | torch.Tensor],
    banned: Iterable[Ids | Sequence[int]],
    before: bytearray | None = None,
) -> bytearray:
    """Return a mask: 1 for a token that ``before`` and every allowed list have and none bans."""
    import numpy as np

    left = bytearray(b"\x01") * vocab_size if before is None else bytearray(before)
    view = np.frombuffer(left, dtype=np.uint8)
    for ids in allowed:
        one = np.zeros(vocab_size, dtype=np.uint8)
        one[tensor_of(ids).numpy()] = 1
        view &= one
    for ids in banned:
        view[tensor_of(ids).numpy()] = 0
    return left


def intersection(one: bytearray, other: bytearray) -> bytearray:
    """Return the mask of the tokens that two masks both have."""
    import numpy as np

    both = np.frombuffer(one, dtype=np.uint8) & np.frombuffer(other, dtype=np.uint8)
    return bytearray(both)


def count_ones(mask: bytearray) -> int:
    """Return the number of possible tokens of a mask."""
    import numpy as np

    return int(np.count_nonzero(np.frombuffer(mask, dtype=np.bool_)))
