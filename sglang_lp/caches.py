"""Caches shared by the ``n`` copies of a request.

- :class:`KeptIds`: the ids of each place in a list of texts or sequences.
- :class:`Latest`: one object per request.
- :data:`shared_by_copies`: the results of a function of a request's parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sized
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["KeptIds", "Latest", "packed", "shared_by_copies"]

_Made = TypeVar("_Made")
_Found = TypeVar("_Found", bound=Sized)

#: Decorates a function of a request's parameters, which must be hashable. Copies of the request get
#: the same object; the results of the latest 16 requests are kept.
shared_by_copies = lru_cache(maxsize=16)

#: Most ids that are kept for one list of sequences or texts.
_MAX_KEPT = 262_144

#: Memory of a place without ids, in ids.
_KEPT = 32


class Latest(Generic[_Made]):
    """The latest results by key.

    Args:
        most: Number of results that are kept.
    """

    __slots__ = ("_made", "_most")

    def __init__(self, most: int) -> None:
        self._made: OrderedDict[object, _Made] = OrderedDict()
        self._most = most

    def get(self, key: object) -> _Made | None:
        """Return the result of a key, ``None`` if there is none."""
        found = self._made.get(key)
        if found is not None:
            self._made.move_to_end(key)
        return found

    def keep(self, key: object, made: _Made) -> None:
        """Keep a result; the least recently used result may go."""
        self._made[key] = made
        if len(self._made) > self._most:
            self._made.popitem(last=False)

    def values(self) -> list[_Made]:
        """Return all results."""
        return [*self._made.values()]


class KeptIds(Generic[_Found]):
    """The ids of requested places. The cache is cleared when it holds too many ids."""

    __slots__ = ("_found", "_total")

    def __init__(self) -> None:
        self._found: dict[Any, _Found] = {}
        self._total = 0

    def of(self, place: Any, put_together: Callable[[Any], _Found]) -> _Found:
        """Return the ids of a place: the same object as before while it is cached.

        Args:
            place: A hashable place.
            put_together: Returns the ids of a place; an error is not cached.
        """
        found = self._found.get(place)
        if found is None:
            found = put_together(place)
            self._total += len(found) + _KEPT
            if self._total > _MAX_KEPT:
                self._found.clear()
                self._total = len(found) + _KEPT
            self._found[place] = found
        return found


def packed(custom_params: Any) -> bytes | None:
    """Return the cache key of parameters; ``None`` if they have none.

    Unlike ``==``, the key distinguishes 1, True and 1.0.

    Args:
        custom_params: The request's ``custom_params``, or ``None``. SGLang's ``__req__`` is left
            out.
    """
    if not isinstance(custom_params, dict | None):
        return None
    if custom_params and "__req__" in custom_params:
        custom_params = {key: value for key, value in custom_params.items() if key != "__req__"}
    try:
        return msgspec.msgpack.encode(custom_params)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
