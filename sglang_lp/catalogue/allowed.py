"""The items that one request may get, and the tokens that lead to one of them."""

from __future__ import annotations

from array import array
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.catalogue.index import NOWHERE
from sglang_lp.copies import KeptIds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sglang_lp.catalogue.index import Index
    from sglang_lp.catalogue.sets import Members

__all__ = ["Allowed"]


class Allowed:
    """Some items of a catalogue.

    Attributes:
        index: The catalogue.
        members: A set that they are in; ``None`` for no set, or where ``only`` is given.
        left_out: Ranks of members that are not allowed, ascending.
        only: Ranks of all that are allowed, ascending; ``None`` for as many as the others leave.
        total: Number of allowed items.
        kept: Cache of the tokens after each node, filled by the caller.
        whole: The items before :meth:`restrict`; ``None`` for a set.
    """

    __slots__ = ("index", "kept", "left_out", "members", "only", "total", "whole")

    def __init__(
        self,
        index: Index,
        members: Members | None = None,
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
        if only is not None:
            only = np.setdiff1d(only, left_out, assume_unique=True)
            only = only if members is None else only[members.has(only)]
            members, left_out = None, none
        elif members is not None:
            left_out = left_out[members.has(left_out)]
        self.index = index
        self.kept: KeptIds[Collection[int]] = KeptIds()
        self.whole: Allowed | None = None
        self.members, self.left_out, self.only = members, left_out, only
        if only is not None:
            self.total = len(only)
        else:
            size = index.shape.items if members is None else members.total
            self.total = size - len(left_out)

    def restrict(self, left_out: NDArray[Any], only: NDArray[Any] | None) -> Allowed:
        """Return the items that further rules leave of a set; arguments as for the class."""
        found = Allowed(self.index, self.members, left_out, only)
        found.whole = self
        return found

    @property
    def is_all(self) -> bool:
        """Whether every item of the catalogue is allowed."""
        return self.total == self.index.shape.items

    def tokens(self, node: int, depth: int) -> array[int]:
        """Return the tokens after a node that lead to an allowed item, ascending.

        Args:
            node: A node; the result is empty if no allowed item is below it.
            depth: Of the node.
        """
        start, stop = self.index.children(node)
        token_ids = self.index.arrays.token[start:stop]
        if not self.is_all and start < stop:
            token_ids = token_ids[self.has_below(*self.index.ranks(start, stop, depth + 1))]
        return array("q", token_ids.astype(np.int64).tobytes())

    def child(self, node: int, depth: int, token_id: int) -> int:
        """Return the node after a token, or ``NOWHERE`` if the token leads to no allowed item.

        Args:
            node: A node.
            depth: Of the node.
            token_id: The token.
        """
        found = self.index.child(node, token_id)
        if found == NOWHERE or self.is_all:
            return found
        (is_there,) = self.has_below(*self.index.ranks(found, found + 1, depth + 1))
        return found if is_there else NOWHERE

    def has_below(self, low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.bool_]:
        """Tell for each of some runs of ranks whether it has an allowed item.

        Args:
            low: First rank of each run.
            high: Rank after the last rank of each run.
        """
        if self.only is not None:
            return self.only.searchsorted(low) < self.only.searchsorted(high)
        count = high - low if self.members is None else self._members_in(low, high)
        if len(self.left_out):
            count = count - (self.left_out.searchsorted(high) - self.left_out.searchsorted(low))
        return count > 0

    def _members_in(self, low: NDArray[Any], high: NDArray[Any]) -> NDArray[np.int32]:
        return self.members.below(high) - self.members.below(low)  # type: ignore[union-attr]
