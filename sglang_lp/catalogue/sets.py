"""Named sets of items, as marks of the nodes that lead to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_lp.catalogue.index import Index

__all__ = ["intersection", "marks", "members", "union"]


def members(index: Index, name: str) -> NDArray[np.bool_]:
    """Return for each rank whether a named set has the item.

    Args:
        index: Has the set.
        name: Of the set.
    """
    return np.unpackbits(index.sets[name], count=index.shape.items).view(np.bool_)


def union(index: Index, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return for each rank whether one of some sets has the item."""
    packed = np.bitwise_or.reduce([index.sets[name] for name in names])
    return np.unpackbits(packed, count=index.shape.items).view(np.bool_)


def intersection(index: Index, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return for each rank whether all of some sets have the item."""
    packed = np.bitwise_and.reduce([index.sets[name] for name in names])
    return np.unpackbits(packed, count=index.shape.items).view(np.bool_)


def marks(index: Index, there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for each node whether an item of a set is below it: exact at every depth.

    Args:
        index: The index.
        there: For each rank whether the set has the item.

    Returns:
        Shape ``(nodes,)``.
    """
    shape = index.shape
    count = np.zeros(shape.items + 1, dtype=np.int32)
    np.cumsum(there, out=count[1:])
    found = np.empty(shape.nodes, dtype=np.bool_)
    for depth in range(shape.levels + 1):
        start, stop = shape.offsets[depth], shape.offsets[depth + 1]
        low, high = index.ranks(start, stop, depth)
        found[start:stop] = count[high] > count[low]
    return found
