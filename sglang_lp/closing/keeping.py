"""A bounded cache of tables that can be made again: one for all grammars of a process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

#: Most bytes that are kept.
_MOST_BYTES = 128 << 20


class Sized(Protocol):
    """A thing that says how large it can become."""

    @property
    def nbytes(self) -> int:
        """Number of bytes."""


_T = TypeVar("_T", bound=Sized)


class Keeping(Generic[_T]):
    """Keeps the things that were used last, up to a number of bytes.

    SGLang's thread for grammars and its scheduler use it at once.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: dict[Hashable, _T] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable) -> _T | None:
        """Return the thing of a key, or ``None`` if it is not kept."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found  # the last
            return found

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Return the thing of a key, made if it is not kept."""
        found = self.find(key)
        if found is not None:
            return found
        made = make()
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._bytes += made.nbytes
            while self._bytes > self._most and len(self._kept) > 1:
                self._bytes -= self._kept.pop(next(iter(self._kept))).nbytes
        return made
