"""Arenas: one growing array for the blocks of many rows, so that a compiled call takes one array.

A block is an offset and never an address, so bounds can be checked, and an arena may move.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

__all__ = ["Arena", "ArenaBlock"]

#: How many numbers the first array has.
_FIRST = 1 << 12


class ArenaBlock:
    """Numbers of one row, or numbers that rows share, at an offset of an arena.

    The arena takes the numbers back when the block is no longer referenced.

    Attributes:
        at: The offset.
        size: How many numbers.
        kept: Blocks that this block refers to.
    """

    __slots__ = ("__weakref__", "at", "kept", "size")

    def __init__(self, at: int, size: int, kept: tuple[ArenaBlock, ...] = ()) -> None:
        self.at, self.size, self.kept = at, size, kept


class Arena:
    """Blocks of numbers of one type.

    Args:
        dtype: Type of the numbers.

    Attributes:
        numbers: The array, one-dimensional. It is replaced when it is too small, and when no block
            is left, so no view of it may outlive a call.
    """

    def __init__(self, dtype: Any) -> None:
        self.numbers: Any = np.empty(_FIRST, dtype)
        self._end = 0
        #: Offsets of free blocks by their size.
        self._free: dict[int, list[int]] = {}
        self._used = 0
        self._shared: weakref.WeakValueDictionary[Hashable, ArenaBlock] = (
            weakref.WeakValueDictionary()
        )

    def take(self, size: int, kept: tuple[ArenaBlock, ...] = ()) -> ArenaBlock:
        """Return a block with room for so many numbers, whose values are arbitrary.

        Args:
            size: How many numbers.
            kept: Blocks that the block refers to, which live as long as it does.
        """
        room = _rounded(size)
        free = self._free.get(room)
        if free:
            at = free.pop()
        else:
            at = self._end
            self._end += room
            if self._end > len(self.numbers):
                before = self.numbers
                self.numbers = np.empty(max(self._end, 2 * len(before)), before.dtype)
                self.numbers[: len(before)] = before
        self._used += 1
        block = ArenaBlock(at, size, kept)
        weakref.finalize(block, self._give, at, room).atexit = False
        return block

    def share(self, key: Hashable, make: Callable[[], Any]) -> ArenaBlock:
        """Return a block with numbers that many rows read; equal keys find the same block.

        Args:
            key: Identifies the numbers within the arena.
            make: Returns the numbers; called if no block has them.
        """
        block = self._shared.get(key)
        if block is None:
            numbers = make()
            block = self._shared[key] = self.take(len(numbers))
            self.of(block)[:] = numbers
        return block

    def of(self, block: ArenaBlock) -> Any:
        """Return the numbers of a block, as a view that is valid until the arena changes."""
        return self.numbers[block.at : block.at + block.size]

    def _give(self, at: int, room: int) -> None:
        self._used -= 1
        self._free.setdefault(room, []).append(at)
        if not self._used:  # nothing grows for the life of the process
            self.numbers = np.empty(_FIRST, self.numbers.dtype)
            self._end = 0
            self._free.clear()


def _rounded(size: int) -> int:
    """Round a size up, by less than a quarter or 16, so that freed blocks fit other rows."""
    step = max(16, 1 << max(0, size.bit_length() - 3))
    return -(-size // step) * step
