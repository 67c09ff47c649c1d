"""Sets of items, packed, with counts that make "is one of them below this node" two look-ups."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_lp.catalogue.index import Index

__all__ = ["ItemSet"]


#: For each bit of a word, the mask of the bits before it, uint64.
_BEFORE = ~(np.uint64(2**64 - 1) >> np.arange(64, dtype=np.uint64))


class ItemSet:
    """A set of items, for counting how many of them a run of ranks has.

    Attributes:
        total: Number of members.
    """

    __slots__ = ("_counts", "_words", "total")

    def __init__(self, packed: NDArray[np.uint8], items: int) -> None:
        """Count the members of a set.

        Args:
            packed: One bit an item, as by ``np.packbits``.
            items: Number of items of the catalogue.
        """
        filled = np.zeros((items // 64 + 1) * 8, dtype=np.uint8)
        filled[: len(packed)] = packed
        #: Rank ``r`` is bit ``63 - r % 64`` of word ``r // 64``, uint64.
        self._words = filled.view(">u8").astype(np.uint64)
        ends = np.bitwise_count(self._words).cumsum(dtype=np.int32)
        #: Number of members before each word, int32.
        self._counts = np.append(np.int32(0), ends[:-1])
        self.total = int(ends[-1])

    @classmethod
    def of(cls, index: Index, wanted: Collection[Collection[str]]) -> ItemSet:
        """Return the items that are in at least one set of every group.

        Exact at every depth, because the sets are joined item by item, not node by node.

        Args:
            index: Has all the sets.
            wanted: At least one group, each of at least one name of a set.
        """
        # One after the other: ``ufunc.reduce`` would first copy all sets into one array.
        groups = (reduce(or_, (index.sets[name] for name in group)) for group in wanted)
        return cls(reduce(and_, groups), index.shape.items)

    def below(self, ranks: NDArray[Any]) -> NDArray[np.int32]:
        """Return the number of members with a smaller rank, for each of some ranks.

        Args:
            ranks: From 0 to the number of items, any shape.

        Returns:
            Counts of the same shape, int32.
        """
        places = ranks >> 6
        words = self._words[places] & _BEFORE[ranks & 63]
        found: NDArray[np.int32] = self._counts[places] + np.bitwise_count(words)
        return found

    def has_between(self, low: int, high: int) -> bool:
        """Tell whether any rank from ``low`` to before ``high`` is a member."""
        return self._below(low) < self._below(high)

    def _below(self, rank: int) -> int:
        """Return the number of members with a smaller rank; for one rank numpy is slow."""
        word = int(self._words[rank >> 6]) >> 1 >> (63 - (rank & 63))
        return int(self._counts[rank >> 6]) + word.bit_count()

    def has(self, ranks: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each of some ranks whether the item is a member; same shape, bool."""
        shifts = (63 - (ranks & 63)).astype(np.uint64)
        found: NDArray[np.bool_] = (self._words[ranks >> 6] >> shifts & np.uint64(1)).astype(
            np.bool_
        )
        return found
