"""What was read of a prompt, once for all copies of a request."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]


class Read(Protocol):
    """What was read of a prompt.

    Attributes:
        prompt: The bytes of its tokens.
    """

    prompt: bytes


_Read = TypeVar("_Read", bound=Read)


class ReadPrompts(Generic[_Read]):
    """What was read of the prompts of running requests. Weak: it goes with the last of them."""

    __slots__ = ("_read",)

    def __init__(self) -> None:
        self._read: WeakValueDictionary[tuple[Any, ...], _Read] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._read)

    def of(self, tokens: Numbers, key: tuple[Any, ...], read: Callable[[bytes], _Read]) -> _Read:
        """Return what was read of a prompt, the same object as before while that lives.

        Args:
            tokens: The prompt, contiguous.
            key: What else decides.
            read: Takes the bytes of its tokens.
        """
        # A few tokens find it, and all of them have to be the same. To compare bytes takes half
        # the time that numpy needs.
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
