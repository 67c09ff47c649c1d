"""Caches of what was derived from a prompt, shared by the copies of a request."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Read(Protocol):
    """An object derived from a prompt.

    Attributes:
        prompt: The bytes of its tokens.
    """

    prompt: bytes


_Read = TypeVar("_Read", bound=Read)


class ReadPrompts(Generic[_Read]):
    """Weak cache of objects that are derived from the prompts of running requests."""

    __slots__ = ("_read",)

    def __init__(self) -> None:
        self._read: WeakValueDictionary[tuple[Any, ...], _Read] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._read)

    def of(self, tokens: Numbers, key: tuple[Any, ...], read: Callable[[bytes], _Read]) -> _Read:
        """Return the object derived from a prompt, the cached one if it is still alive.

        Args:
            tokens: The prompt, contiguous.
            key: Everything else that the object depends on.
            read: From the bytes of the prompt's tokens to the object.
        """
        # A sample of the tokens is the key; then all bytes are compared.
        sample = tokens[:: len(tokens) // 64 + 1].tobytes(), tokens[-16:].tobytes()
        place = len(tokens), *key, *sample
        found = self._read.get(place)
        if found is None or not found.prompt.startswith(tokens.data):
            found = self._read[place] = read(tokens.tobytes())
        return found


def numbers_of(token_ids: Sequence[int], start: int = 0) -> Numbers:
    """Return a prompt from an index on; without a copy if it is an array of 64 bits."""
    import numpy as np

    if isinstance(token_ids, array) and token_ids.typecode == "q":
        return np.frombuffer(token_ids, dtype=np.int64)[start:]
    return np.array(token_ids[start:], dtype=np.int64)
