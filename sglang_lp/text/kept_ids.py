"""Token ids by the place in a text or sequence, put together once for all copies of a request."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Generic, TypeVar

__all__ = ["KeptIds"]

#: Most ids that are kept for one list of sequences or texts: 2 MB.
_MAX_KEPT = 262_144

#: What a place without ids takes, in ids.
_KEPT = 32

_Found = TypeVar("_Found", bound=Sized)


class KeptIds(Generic[_Found]):
    """The ids of the places that were asked for. If they become too many, all are forgotten."""

    __slots__ = ("_found", "_total")

    def __init__(self) -> None:
        self._found: dict[Any, _Found] = {}
        self._total = 0

    def of(self, place: Any, put_together: Callable[[Any], _Found]) -> _Found:
        """Return the ids of a place, the same object as before if it is still kept.

        Args:
            place: Anything that can be a key.
            put_together: From a place to its ids; what it raises is not kept.
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
