"""The items that one request may get, and the tokens that lead to one of them."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.caches import KeptIds
from sglang_lp.catalogue.index import NOWHERE, begins

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_lp.catalogue.index import Index
    from sglang_lp.catalogue.sets import ItemSet

__all__ = ["AllowedItems"]


class AllowedItems:
    """Some items of a catalogue.

    Attributes:
        index: The catalogue.
        total: Number of allowed items.
        is_all: Whether every item of the catalogue is allowed.
        kept: Cache of the tokens after each node, filled by the caller.
        whole: The items before :meth:`restrict`; ``None`` for a set.
    """

    __slots__ = ("_alive", "_dead", "_members", "index", "is_all", "kept", "total", "whole")

    def __init__(
        self,
        index: Index,
        members: ItemSet | None = None,
        left_out: NDArray[Any] | None = None,
        only: NDArray[Any] | None = None,
    ) -> None:
        """Join the rules of a request.

        Args:
            index: The catalogue.
            members: The items are in this set.
            left_out: The items are none of these ranks, ascending, each once.
            only: The items are some of these ranks, ascending, each once.
        """
        none = np.zeros(0, dtype=np.int32)
        left_out = none if left_out is None else left_out
        self.index = index
        self.kept: KeptIds[Collection[int]] = KeptIds()
        self.whole: AllowedItems | None = None
        self._members = members
        #: Nodes that lead to an item of ``only``, ascending; ``None`` without ``only``.
        self._alive: NDArray[np.int64] | None = None
        #: Nodes that ``left_out`` empties of members, ascending.
        self._dead: NDArray[np.int64] = none.astype(np.int64)
        size = index.shape.items if members is None else members.total
        if only is not None:
            only = np.setdiff1d(only, left_out, assume_unique=True)
            only = only if members is None else only[members.has(only)]
            self._alive = _above(index, only)
            self.total = len(only)
        elif len(left_out):
            left_out = left_out if members is None else left_out[members.has(left_out)]
            self._dead = _emptied(index, members, left_out)
            self.total = size - len(left_out)
        else:
            self.total = size
        self.is_all = self.total == index.shape.items

    def restrict(self, left_out: NDArray[Any], only: NDArray[Any] | None) -> AllowedItems:
        """Return the items that further rules leave of a set; arguments as for the class."""
        found = AllowedItems(self.index, self._members, left_out, only)
        found.whole = self
        return found

    def restricts(self, node: int) -> bool:
        """Tell whether fewer tokens may follow a node than :attr:`whole` allows."""
        if self._alive is not None:
            return True
        low, high = self._dead.searchsorted(self.index.children(node))
        return bool(low < high)

    def tokens(self, node: int, depth: int) -> array[int]:
        """Return the tokens after a node that lead to an allowed item, ascending, in a new array.

        Args:
            node: A node; the result is empty if no allowed item is below it.
            depth: The node's depth.
        """
        start, stop = self.index.children(node)
        token_ids = self.index.arrays.token[start:stop]
        if not self.is_all and start < stop:
            token_ids = token_ids[self._living(start, stop, depth + 1)]
        return array("q", token_ids.astype(np.int64).tobytes())

    def _living(self, start: int, stop: int, depth: int) -> NDArray[Any]:
        """Return which nodes of a run have an allowed item: places, or a mask."""
        if self._alive is not None:
            low, high = self._alive.searchsorted((start, stop))
            return self._alive[low:high] - start
        if self._members is None:
            living = np.ones(stop - start, dtype=np.bool_)
        elif stop == start + 1:
            living = np.array([self._members.has_between(*self.index.span(start, depth))])
        else:
            counts = self._members.below(self.index.bounds(start, stop, depth))
            living = counts[:-1] < counts[1:]
        if len(self._dead):
            low, high = self._dead.searchsorted((start, stop))
            living[self._dead[low:high] - start] = False
        return living

    def child(self, node: int, depth: int, token_id: int) -> int:
        """Return the node after a token, or ``NOWHERE`` if the token leads to no allowed item.

        Args:
            node: A node.
            depth: The node's depth.
            token_id: The token.
        """
        found = self.index.child(node, token_id)
        if found == NOWHERE or self.is_all:
            return found
        if self._alive is not None:
            lives = _has(self._alive, found)
        else:
            lives = not _has(self._dead, found) and (
                self._members is None
                or self._members.has_between(*self.index.span(found, depth + 1))
            )
        return found if lives else NOWHERE


def _has(nodes: NDArray[np.int64], node: int) -> bool:
    """Tell whether a node is among ascending nodes."""
    place = nodes.searchsorted(node)
    return bool(place < len(nodes) and nodes[place] == node)


def _above(index: Index, ranks: NDArray[Any]) -> NDArray[np.int64]:
    """Return all nodes that are above one of some items or are one of them, ascending."""
    found = [np.zeros(0, dtype=np.int64)]
    for depth in range(1, index.shape.levels + 1):
        above = index.above(ranks, depth)
        found.append(above[begins(above) & (above > NOWHERE)])
    return np.concatenate(found)


def _emptied(index: Index, members: ItemSet | None, ranks: NDArray[Any]) -> NDArray[np.int64]:
    """Return the nodes that lose all their items, ascending.

    Args:
        index: The catalogue.
        members: The items that nodes have; ``None`` for all.
        ranks: The items that they lose, all members.
    """
    found = [np.zeros(0, dtype=np.int64)]
    for depth in range(index.shape.levels, 0, -1):
        above = index.above(ranks, depth)
        (starts,) = begins(above).nonzero()
        nodes, lost = above[starts], np.diff(starts, append=len(above))
        low, high = index.spans(nodes, depth)
        has = high - low if members is None else members.below(high) - members.below(low)
        is_shorter = nodes == NOWHERE
        is_emptied = (has == lost) & ~is_shorter
        found.append(nodes[is_emptied])
        # A node that keeps an item keeps the nodes above it.
        ranks = ranks[np.repeat(is_emptied | is_shorter, lost)]
    return np.concatenate(found[::-1])
