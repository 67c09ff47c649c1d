"""The index of a catalogue: a trie in flat arrays, and its walk on the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from sglang_lp.errors import SglangLpError, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NOWHERE", "ROOT", "Arrays", "CatalogueError", "Index", "IndexSizes", "begins"]

#: The node before the first token of an item.
ROOT = 0

#: The node after a token that leads to no item.
NOWHERE = -1

#: Ids of which one is in the table that a search for ids begins with; a power of two.
_STRIDE = 64


class CatalogueError(SglangLpError):
    """Invalid items, a file that is no catalogue, or item ids that cannot be those of one."""


class IndexSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of an index.

    Attributes:
        items: Number of different token sequences.
        levels: Number of tokens of the longest item.
        offsets: Node at which each depth begins, from the root (depth 0) to ``levels``; then the
            number of nodes.
        branch: Largest number of children of a node, for each depth below ``levels``.
        end: Token after every item, or ``None`` if no item is the beginning of another.
        ragged: Whether items differ in length.
        vocab_size: The largest token id plus one.
    """

    items: int
    levels: int
    offsets: tuple[int, ...]
    branch: tuple[int, ...]
    end: int | None
    ragged: bool
    vocab_size: int

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.offsets[-1]

    @property
    def inner(self) -> int:
        """Number of nodes of a depth below ``levels``: the only ones that can have children."""
        return self.offsets[self.levels]


class Arrays(NamedTuple):
    """Arrays of an index, all int32 except ``ids``.

    Items are sorted by their tokens; the *rank* of an item is its place. Nodes are prefixes of
    items, numbered breadth first, so that the children of a node are a run of nodes and the items
    below a node are a run of ranks.

    Attributes:
        first: Shape ``(inner + 1,)``. Children of node ``i`` are ``first[i]`` to ``first[i + 1]``.
        token: Shape ``(nodes,)``. Token that leads to each node, ascending among the children of
            one node; 0 for the root.
        low: First rank below each node. Where all items have one length, each depth has one entry
            more, and the deepest depth has no entries: the ranks below node ``i`` of depth ``d``
            are ``low[i + d]`` to ``low[i + d + 1]``, and the deepest nodes are the items.
        high: Rank behind the last item below each node; empty where all items have one length.
        ids: Item ids in the order of the ranks: int64, or bytes of UTF-8.
        start: Shape ``(items + 1,)``. Ids of rank ``r`` are ``ids[start[r]]`` to
            ``ids[start[r + 1]]``; empty if each item has one id.
        by_id: Places in ``ids``, in ascending order of the ids.
    """

    first: NDArray[np.int32]
    token: NDArray[np.int32]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    ids: NDArray[Any]
    start: NDArray[np.int32]
    by_id: NDArray[np.int32]


class Index:
    """An immutable catalogue.

    Attributes:
        shape: Its sizes.
        arrays: Its arrays, often mapped from a file and not writable.
        sets: For each named set one bit an item, packed as by ``np.packbits``.
        version: Digest of the contents, 16 hex digits: equal on every server that has equal items.
    """

    def __init__(
        self,
        shape: IndexSizes,
        arrays: Arrays,
        sets: Mapping[str, NDArray[np.uint8]],
        version: str,
    ) -> None:
        self.shape = shape
        self.arrays = arrays
        self.sets = sets
        self.version = version
        #: Every ``_STRIDE``-th id in ascending order.
        self._heads = arrays.ids[arrays.by_id[::_STRIDE]]

    def __repr__(self) -> str:
        shape = self.shape
        return (
            f"<Index {self.version}: {shape.items} items of up to {shape.levels} tokens, "
            f"{shape.nodes} nodes>"
        )

    # Nodes

    def children(self, node: int) -> tuple[int, int]:
        """Return the run of nodes that are the children of a node; an empty one for a leaf.

        Args:
            node: A node or ``NOWHERE``.
        """
        if not 0 <= node < self.shape.inner:
            return 0, 0
        first = self.arrays.first
        return int(first[node]), int(first[node + 1])

    def child(self, node: int, token_id: int) -> int:
        """Return the node after a token, or ``NOWHERE`` if the token leads to no item."""
        start, stop = self.children(node)
        if start == stop:
            return NOWHERE
        place = start + int(self.arrays.token[start:stop].searchsorted(token_id))
        return place if place < stop and self.arrays.token[place] == token_id else NOWHERE

    def is_item(self, node: int) -> bool:
        """Tell whether a node completes an item."""
        if node in {NOWHERE, ROOT}:
            return False
        start, stop = self.children(node)
        return start == stop

    def depth(self, node: int) -> int:
        """Return the number of tokens that lead to a node."""
        return int(np.searchsorted(self.shape.offsets, node, side="right")) - 1

    def misfit(self, vocab_size: int | None, ends: Collection[int]) -> str | None:
        """Return why a model cannot write every item, or ``None``.

        Args:
            vocab_size: Number of logits in a row of the model, if known.
            ends: Tokens that end an answer of the model. An item may have one as its last token.
        """
        shape, arrays = self.shape, self.arrays
        if vocab_size is not None and shape.vocab_size > vocab_size:
            return (
                f"expected token ids of the served model, 0 to {vocab_size - 1}, got "
                f"{shape.vocab_size - 1}; build it for this model"
            )
        goes_on = arrays.first[1:] > arrays.first[:-1]
        inside = goes_on & np.isin(arrays.token[: shape.inner], [*ends])
        inside[ROOT] = False
        if not inside.any():
            return None
        node = int(inside.argmax())
        ids = self.ids_of(self.rank(node))
        return (
            f"expected items without a token that ends an answer of the model, got "
            f"{int(arrays.token[node])} inside of {int(inside.sum())} beginnings of items, such as "
            f"item {shown(ids[0])}: the answer would end there; leave these items out"
        )

    # Items

    def bounds(self, start: int, stop: int, depth: int) -> NDArray[np.int32]:
        """Return where the items below each node of a run begin, and where the last run ends.

        Args:
            start: The first node.
            stop: The node after the last node of the run.
            depth: The depth of these nodes, which are children of one node.

        Returns:
            Ranks, ascending, shape ``(stop - start + 1,)``: the items below node ``start + i`` have
            the ranks from entry ``i`` up to entry ``i + 1``.
        """
        shape, arrays = self.shape, self.arrays
        if shape.ragged:
            return np.append(arrays.low[start:stop], arrays.high[stop - 1])
        if depth == shape.levels:
            return np.arange(start - shape.inner, stop - shape.inner + 1, dtype=np.int32)
        return arrays.low[start + depth : stop + depth + 1]

    def spans(self, nodes: Any, depth: int) -> tuple[Any, Any]:
        """Return the ranks of the items below each of some nodes: from, and up to.

        Args:
            nodes: A node, or an array of nodes.
            depth: The depth of these nodes.
        """
        shape, arrays = self.shape, self.arrays
        if shape.ragged:
            return arrays.low[nodes], arrays.high[nodes]
        if depth == shape.levels:
            return nodes - shape.inner, nodes - shape.inner + 1
        return arrays.low[nodes + depth], arrays.low[nodes + depth + 1]

    def span(self, node: int, depth: int) -> tuple[int, int]:
        """Return the ranks of the items below a node of a depth: from, and up to."""
        low, high = self.spans(node, depth)
        return int(low), int(high)

    def above(self, ranks: NDArray[np.int32], depth: int) -> NDArray[np.int64]:
        """Return the node of a depth that is above each of some items, or is the item itself.

        Args:
            ranks: Ranks of the items, ascending.
            depth: From 1 to ``levels``.

        Returns:
            A node for each rank, ascending; ``NOWHERE`` for an item that is shorter.
        """
        shape, arrays = self.shape, self.arrays
        first, stop = shape.offsets[depth : depth + 2]
        if not shape.ragged and depth == shape.levels:
            return first + ranks.astype(np.int64)
        shift = 0 if shape.ragged else depth
        places = arrays.low[first + shift : stop + shift].searchsorted(ranks, side="right") - 1
        if not shape.ragged:
            return first + places
        reached = (places >= 0) & (ranks < arrays.high[first:stop][places])
        return np.where(reached, first + places, NOWHERE)

    def rank(self, node: int) -> int:
        """Return the rank of the item that a node completes, see :meth:`is_item`."""
        return self.span(node, self.depth(node))[0]

    def tokens_of(self, rank: int) -> list[int]:
        """Return the tokens of the item of a rank, with the end token if there is one."""
        token_ids: list[int] = []
        node = ROOT
        for depth in range(1, self.shape.levels + 1):
            start, stop = self.children(node)
            if start == stop:
                break
            bounds = self.bounds(start, stop, depth)[:-1]
            node = start + int(bounds.searchsorted(rank, side="right")) - 1
            token_ids.append(int(self.arrays.token[node]))
        return token_ids

    def ids_of(self, rank: int) -> list[int] | list[str]:
        """Return the ids of the items that share the tokens of a rank; nearly always one."""
        start, arrays = rank, self.arrays
        stop = rank + 1
        if len(arrays.start):
            start, stop = int(arrays.start[rank]), int(arrays.start[rank + 1])
        found = arrays.ids[start:stop].tolist()
        return [one.decode() for one in found] if self.has_text_ids else found

    @property
    def has_text_ids(self) -> bool:
        """Whether item ids are texts, not whole numbers."""
        return self.arrays.ids.dtype.kind == "S"

    def ranks_of(self, ids: Sequence[int | str]) -> tuple[NDArray[np.int32], int]:
        """Return the ranks of items, ascending, each once, and the number of unknown ids.

        Args:
            ids: Item ids, all whole numbers or all texts, as the catalogue has them.

        Raises:
            CatalogueError: Ids of the wrong type.
        """
        arrays = self.arrays
        wanted = self._as_ids(ids)
        wanted.sort()
        entries = arrays.by_id[self._places(wanted)]
        known = arrays.ids[entries] == wanted
        found = entries[known]
        if len(arrays.start):  # all ids of a rank have the same tokens
            found = arrays.start.searchsorted(found, side="right").astype(np.int32) - np.int32(1)
        found.sort()  # faster than ``numpy.unique``
        return found[begins(found)], len(ids) - int(known.sum())

    def _places(self, wanted: NDArray[Any]) -> NDArray[np.int64]:
        """Return the place in ``by_id`` of the last id up to each of some ascending ids.

        ``searchsorted`` with a sorter would copy ``by_id`` at every call.
        """
        ids, by_id = self.arrays.ids, self.arrays.by_id
        places = np.maximum(self._heads.searchsorted(wanted, side="right") - 1, 0) * _STRIDE
        step = _STRIDE // 2
        while step:
            further = np.minimum(places + step, len(by_id) - 1)
            places = np.where(ids[by_id[further]] <= wanted, further, places)
            step //= 2
        return places

    def _as_ids(self, ids: Sequence[int | str]) -> NDArray[Any]:
        kind, type_name = (str, "texts") if self.has_text_ids else (int, "whole numbers")
        if {*map(type, ids)} - {kind}:
            place, one = next((at, one) for at, one in enumerate(ids) if type(one) is not kind)
            raise CatalogueError(
                f"entry {place}: expected item ids, which are {type_name} in this catalogue, "
                f"got {shown(one)}"
            )
        if self.has_text_ids:
            width = self.arrays.ids.dtype.itemsize
            texts = [str(one).encode() for one in ids]
            # numpy would cut a longer text, and ends a text at a NUL.
            return np.array(
                [b"" if len(t) > width or b"\0" in t else t for t in texts], f"S{width}"
            )
        try:
            return np.array(ids, dtype=np.int64)
        except OverflowError:  # no item has such an id
            return np.array([one if -(2**63) <= int(one) < 2**63 else -(2**63) for one in ids])


def begins(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell for each number whether it differs from the number before it."""
    found: NDArray[np.bool_] = np.ones(len(numbers), dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=found[1:])
    return found
