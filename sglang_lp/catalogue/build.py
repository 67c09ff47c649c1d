"""Building an index: items are sorted, and each depth is a pass of numpy over them.

A pass works in pieces, so that its temporary arrays stay small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from sglang_lp.catalogue.index import Arrays, CatalogueError, Index, IndexSizes
from sglang_lp.errors import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_LEVELS", "MAX_TOKEN", "PAD", "build", "version_of"]

#: Fills the places behind an item that is shorter than the longest item.
PAD = -1

#: Most tokens of an item.
MAX_LEVELS = 32

#: Largest token id.
MAX_TOKEN = (1 << 24) - 1

#: Items of one piece.
_PIECE = 1 << 20

_KEY_BITS = 64

#: Most items that an error names.
_SHOWN = 5

Progress = Callable[[str], None]


def build(
    codes: NDArray[np.int32],
    ids: NDArray[Any] | None = None,
    *,
    end: int | None = None,
    sets: Mapping[str, NDArray[np.bool_]] | None = None,
    progress: Progress = lambda _step: None,
) -> Index:
    """Build the index of a catalogue.

    Items with equal tokens become one item with several ids.

    Args:
        codes: Tokens of each item, shape ``(items, levels)``, int32; shorter items end with
            ``PAD``. Not changed.
        ids: Id of each item, shape ``(items,)``: int64, or bytes of UTF-8. ``None`` for the
            places in ``codes``.
        end: Token that is put after every item. Needed where one item is the beginning of
            another.
        sets: By name of a set, whether it has each item, shape ``(items,)``, bool.
        progress: Called with a few words before each step.

    Raises:
        CatalogueError: No items, an id twice, tokens out of range, a hole in an item, ``end``
            inside an item, or, without ``end``, an item that is a prefix of another.
    """
    progress("checking")
    codes = _checked(codes, end)
    ids = np.arange(len(codes), dtype=np.int64) if ids is None else ids
    if len(ids) != len(codes):
        raise CatalogueError(f"expected an id for each of {len(codes)} items, got {len(ids)}")
    progress("sorting")
    items = _sorted(codes)
    levels = codes.shape[1]
    ragged = bool((codes[:, -1] == PAD).any())
    if ragged and end is None:
        _refuse_beginnings(codes, items, ids)
    progress("numbering nodes")
    nodes, offsets, branch = _nodes(items, levels, ragged=ragged)
    progress("ordering ids")
    firsts = np.flatnonzero(items.shared < levels).astype(np.int32)
    start = np.append(firsts, np.int32(len(ids))) if len(firsts) < len(ids) else firsts[:0]
    own, by_id = _ids(items, ids)
    progress("marking sets")
    marks = {name: _marks(items, members, firsts) for name, members in (sets or {}).items()}
    shape = IndexSizes(
        items=len(firsts),
        levels=levels,
        offsets=offsets,
        branch=branch,
        end=end,
        ragged=ragged,
        vocab_size=int(codes.max()) + 1,
    )
    whole = Arrays(*nodes, own, start, by_id)
    progress("digesting")
    return Index(shape, whole, marks, version_of(shape, whole, marks))


def version_of(shape: IndexSizes, arrays: Arrays, sets: Mapping[str, NDArray[np.uint8]]) -> str:
    """Return a digest of an index, 16 hex digits."""
    digest = hashlib.sha256(repr(shape).encode())
    for array in arrays:
        digest.update(repr((array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data.cast("B"))
    for name in sorted(sets):
        digest.update(name.encode() + b"\0")
        digest.update(np.ascontiguousarray(sets[name]).data)
    return digest.hexdigest()[:16]


def _checked(codes: NDArray[np.int32], end: int | None) -> NDArray[np.int32]:
    """Check items; return their tokens and the end token behind them, in as few columns as fit.

    Raises:
        CatalogueError: As :func:`build` for tokens and ``end``.
    """
    if not codes.size:
        raise CatalogueError("expected at least one item of one token, got none")
    if codes.shape[1] > MAX_LEVELS:
        raise CatalogueError(f"expected items of at most {MAX_LEVELS} tokens, got {codes.shape[1]}")
    if len(codes) >= 1 << 31:
        raise CatalogueError(f"expected fewer than {1 << 31} items, got {len(codes)}")
    low, high = int(codes.min()), int(codes.max())
    if low < PAD or high > MAX_TOKEN:
        raise CatalogueError(
            f"expected token ids from 0 to {MAX_TOKEN}, got {low if low < PAD else high}"
        )
    if end is not None and not 0 <= end <= MAX_TOKEN:
        raise CatalogueError(f"end: expected a token id from 0 to {MAX_TOKEN}, got {end}")
    if low != PAD and end is None:
        return codes
    if low == PAD:
        filled = codes != PAD
        holes = (filled[:, 1:] & ~filled[:, :-1]).any(1) | ~filled[:, 0]
        if holes.any():
            raise CatalogueError(
                f"item {int(holes.argmax())}: expected its tokens without a gap, got "
                f"{shown(codes[int(holes.argmax())].tolist())}"
            )
        lengths = filled.sum(1)
        codes = codes[:, : int(lengths.max())]
    else:
        lengths = np.full(len(codes), codes.shape[1])
    return codes if end is None else _ended(codes, lengths, end)


def _ended(codes: NDArray[np.int32], lengths: NDArray[Any], end: int) -> NDArray[np.int32]:
    """Return the tokens of each item with the end token behind them.

    Raises:
        CatalogueError: An item has the end token itself.
    """
    inside = (codes == end).any(1)
    if inside.any():
        raise CatalogueError(
            f"item {int(inside.argmax())}: expected the end token {end} only after items, got it "
            f"inside of {int(inside.sum())} items; leave these out, or give another end (--end)"
        )
    wide = np.full((len(codes), codes.shape[1] + 1), PAD, dtype=np.int32)
    wide[:, :-1] = codes
    wide[np.arange(len(codes)), lengths] = end
    return wide


class _SortedItems(NamedTuple):
    """Items in ascending order of their tokens.

    Attributes:
        order: Place of each item before the sort.
        shared: Length of the prefix that each item shares with the item before it, uint8: the
            number of levels for a repeated item. 0 for the first item.
        column: Returns the tokens at a level of some items, given by their places in the order.
    """

    order: NDArray[Any]
    shared: NDArray[np.uint8]
    column: Callable[[int, NDArray[Any]], NDArray[np.int32]]


class _Level(NamedTuple):
    """Tokens at one level, numbered in ascending order so that they take few bits.

    Attributes:
        lowest: The smallest of them.
        number: Number of each token, by its distance from the smallest.
        values: The tokens, ascending.
        bits: Bits of a number.
    """

    lowest: int
    number: NDArray[np.uint64]
    values: NDArray[np.int32]
    bits: int


def _sorted(codes: NDArray[np.int32]) -> _SortedItems:
    """Sort items: by one 64-bit key of each if its tokens fit into that, otherwise by parts."""
    table = [_level(codes[:, level]) for level in range(codes.shape[1])]
    bits = [one.bits for one in table]
    place_bits = max(1, (len(codes) - 1).bit_length())
    if sum(bits) > _KEY_BITS:
        return _sorted_by_parts(codes, table, place_bits)
    key = _key(codes, table, len(table))
    if sum(bits) + place_bits <= _KEY_BITS:  # sorting the keys with their places in the low bits
        key <<= np.uint64(place_bits)
        for start, stop in _pieces(len(key)):
            key[start:stop] |= np.arange(start, stop, dtype=np.uint64)
        key.sort()
        order = np.empty(len(key), dtype=np.int32)
        mask = np.uint64((1 << place_bits) - 1)
        for start, stop in _pieces(len(key)):
            order[start:stop] = key[start:stop] & mask
        key >>= np.uint64(place_bits)
    else:
        order = key.argsort().astype(np.int32)
        key = key[order]
    shifts = [sum(bits[level + 1 :]) for level in range(len(bits))]
    shared = np.empty(len(key), dtype=np.uint8)
    shared[0] = 0
    for start, stop in _pieces(len(key) - 1):
        changed = key[start + 1 : stop + 1] ^ key[start:stop]
        counts = np.zeros(len(changed), dtype=np.uint8)
        for shift in shifts:
            counts += changed >> np.uint64(shift) == 0
        shared[start + 1 : stop + 1] = counts

    def column(level: int, places: NDArray[Any]) -> NDArray[np.int32]:
        one = table[level]
        numbers = key[places] >> np.uint64(shifts[level]) & np.uint64((1 << one.bits) - 1)
        found: NDArray[np.int32] = one.values[numbers]
        return found

    return _SortedItems(order, shared, column)


def _level(column: NDArray[np.int32]) -> _Level:
    """Number the different tokens of a column, ``PAD`` included."""
    lowest, highest = int(column.min()), int(column.max())
    there = np.zeros(highest - lowest + 1, dtype=np.bool_)
    for start, stop in _pieces(len(column)):
        there[column[start:stop] - lowest] = True
    values = np.flatnonzero(there)
    number = np.zeros(len(there), dtype=np.uint64)
    number[values] = np.arange(len(values), dtype=np.uint64)
    bits = max(1, (len(values) - 1).bit_length())
    return _Level(lowest, number, (values + lowest).astype(np.int32), bits)


def _key(codes: NDArray[np.int32], table: Sequence[_Level], levels: int) -> NDArray[np.uint64]:
    """Return a number for each item; numbers sort as the items' first ``levels`` tokens do."""
    key = np.zeros(len(codes), dtype=np.uint64)
    for start, stop in _pieces(len(codes)):
        piece = key[start:stop]
        for level in range(levels):
            one = table[level]
            piece <<= np.uint64(one.bits)
            piece |= one.number[codes[start:stop, level] - one.lowest]
    return key


def _sorted_by_parts(
    codes: NDArray[np.int32], table: Sequence[_Level], place_bits: int
) -> _SortedItems:
    """Sort items whose tokens do not fit into one key.

    By the first levels, as many as fit; then items that are equal in these by the other levels.
    """
    packed = used = 0
    while used + table[packed].bits + place_bits <= _KEY_BITS:
        used += table[packed].bits
        packed += 1
    key = _key(codes, table, packed)
    key <<= np.uint64(place_bits)
    key |= np.arange(len(key), dtype=np.uint64)
    key.sort()
    order = (key & np.uint64((1 << place_bits) - 1)).astype(np.int32)
    key >>= np.uint64(place_bits)
    same = key[1:] == key[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if len(tied):
        rest = codes[order[tied], packed:]
        order[tied] = order[tied][np.lexsort((*rest.T[::-1], key[tied]))]
    del key
    shared = np.zeros(len(order), dtype=np.uint8)
    for start, stop in _pieces(len(order) - 1):
        rows = codes[order[start : stop + 1]]
        shared[start + 1 : stop + 1] = np.logical_and.accumulate(rows[1:] == rows[:-1], 1).sum(1)

    def column(level: int, places: NDArray[Any]) -> NDArray[np.int32]:
        found: NDArray[np.int32] = codes[order[places], level]
        return found

    return _SortedItems(order, shared, column)


_NodeArrays: TypeAlias = (
    "tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]"
)


class _Starts(NamedTuple):
    """Nodes of one depth, as places in the order of the items.

    Attributes:
        first: Place of the first item below each node.
        stop: Place behind the last item below each node.
    """

    first: NDArray[np.int32]
    stop: NDArray[np.int32]


def _nodes(
    items: _SortedItems, levels: int, *, ragged: bool
) -> tuple[_NodeArrays, tuple[int, ...], tuple[int, ...]]:
    """Number the nodes.

    Returns:
        ``first``, ``token``, ``low`` and ``high`` of the index; the first node of each depth; and
        the most children of a node of each depth.

    Raises:
        CatalogueError: There are too many nodes for int32.
    """
    count = len(items.order)
    starts = [_starts(items, depth, ragged=ragged) for depth in range(1, levels + 1)]
    root = _Starts(np.zeros(1, dtype=np.int32), np.full(1, count, dtype=np.int32))
    by_depth = [root, *starts]
    offsets = tuple(np.cumsum([0, *(len(one.first) for one in by_depth)]).tolist())
    if offsets[-1] >= (1 << 31) - 1:
        raise CatalogueError(f"expected fewer than {(1 << 31) - 1} nodes, got {offsets[-1]}")
    first = np.empty(offsets[levels] + 1, dtype=np.int32)
    token = np.zeros(offsets[-1], dtype=np.int32)
    branch = []
    for depth, here in enumerate(starts):
        run = first[offsets[depth] : offsets[depth + 1] + 1]
        for start, stop in _pieces(len(run) - 1):
            above = by_depth[depth].first[start:stop]
            run[start:stop] = offsets[depth + 1] + here.first.searchsorted(above)
        run[-1] = offsets[depth + 2]
        branch.append(int(np.diff(run).max()))
        tokens = token[offsets[depth + 1] : offsets[depth + 2]]
        for start, stop in _pieces(len(tokens)):
            tokens[start:stop] = items.column(depth, here.first[start:stop])
    ranks = _ranks(items, levels)
    if ragged:
        low = np.concatenate([ranks(one.first) for one in by_depth])
        high = np.concatenate([ranks(one.stop) for one in by_depth])
    else:  # the deepest nodes are the items, and a node ends where the next node begins
        ends = ranks(np.full(1, count, dtype=np.int32))
        low = np.concatenate([part for one in by_depth[:-1] for part in (ranks(one.first), ends)])
        high = np.zeros(0, dtype=np.int32)
    return (first, token, low, high), offsets, tuple(branch)


def _starts(items: _SortedItems, depth: int, *, ragged: bool) -> _Starts:
    """Return the nodes of a depth."""
    count = len(items.order)
    pieces = []
    for start, stop in _pieces(count):
        new = items.shared[start:stop] < depth
        pieces.append(np.flatnonzero(new).astype(np.int32) + np.int32(start))
    places = np.concatenate(pieces)
    stops = np.append(places[1:], np.int32(count)) if ragged else places
    if ragged:  # an item that is shorter has no node at this depth
        there = items.column(depth - 1, places) != PAD
        return _Starts(places[there], stops[there])
    return _Starts(places, stops)


def _ranks(items: _SortedItems, levels: int) -> Callable[[NDArray[np.int32]], NDArray[np.int32]]:
    """Return a function from places in the order to ranks.

    A rank counts different items, so it is less than the place behind a repeated item.
    """
    if not (items.shared == levels).any():
        return lambda places: places
    before = np.zeros(len(items.order) + 1, dtype=np.int32)
    np.cumsum(items.shared < levels, out=before[1:])
    return lambda places: before[places]


def _refuse_beginnings(codes: NDArray[np.int32], items: _SortedItems, ids: NDArray[Any]) -> None:
    """Refuse an item that is a prefix of another item: nothing would tell where it ends.

    Raises:
        CatalogueError: There is such an item.
    """
    levels = codes.shape[1]
    for start, stop in _pieces(len(items.order) - 1):
        lengths = (codes[items.order[start:stop]] != PAD).sum(1)
        shared = items.shared[start + 1 : stop + 1]
        found = np.flatnonzero((shared == lengths) & (shared < levels))
        if len(found):
            place = start + int(found[0])
            short, long = (items.order[at] for at in (place, place + 1))
            raise CatalogueError(
                f"item {_shown_id(ids[short])} is the beginning of item {_shown_id(ids[long])}: "
                "expected an end token after every item; give one with end (--end), such as a "
                "special token of the model"
            )


def _ids(items: _SortedItems, ids: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Return the ids in the order of the items, and the places of these in ascending order of ids.

    Raises:
        CatalogueError: An id occurs twice.
    """
    own = ids[items.order]
    by_id = own.argsort().astype(np.int32)
    repeated: list[int] = []
    for start, stop in _pieces(len(own) - 1):
        piece = own[by_id[start : stop + 1]]
        repeated += by_id[start + 1 + np.flatnonzero(piece[1:] == piece[:-1])].tolist()
    if repeated:
        names = ", ".join(_shown_id(own[place]) for place in repeated[:_SHOWN])
        raise CatalogueError(
            f"expected every item id once, got {len(repeated)} repeated: {names}"
            f"{', ...' if len(repeated) > _SHOWN else ''}; leave out the repetitions"
        )
    return own, by_id


def _marks(
    items: _SortedItems, members: NDArray[np.bool_], firsts: NDArray[np.int32]
) -> NDArray[np.uint8]:
    """Return a bit per different item: whether any of its ids is in a set."""
    there = members[items.order]
    if len(firsts) < len(there):
        there = np.logical_or.reduceat(there, firsts)
    return np.packbits(there)


def _shown_id(one: Any) -> str:
    return shown(one.decode() if isinstance(one, bytes) else int(one))


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Yield where each piece of an array starts, and where it stops."""
    for start in range(0, count, _PIECE):
        yield start, min(count, start + _PIECE)
