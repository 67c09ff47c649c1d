"""How far the newest tokens of a text repeat earlier ones, for each distance between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["Tail"]

#: Tokens that are taken in before older ones are moved.
_ROOM = 256


class Tail:
    """The end of a text.

    A token costs some operations on as many numbers as there are distances.

    For each distance from 1 on, the newest tokens that are the same as those so much earlier are
    a run.
    """

    __slots__ = ("_at", "_read", "_since", "_tokens")

    def __init__(self, reach: int, text: Sequence[int] = ()) -> None:
        """Read a text.

        Args:
            reach: The largest distance.
            text: How much of it repeats is counted from its first token on.
        """
        import numpy as np

        #: The tokens, newest first, from ``_at`` on; -1 for those before the first.
        self._tokens = np.full(_ROOM + reach, -1)
        self._at = _ROOM
        #: How many tokens were taken in, and for each distance before which one its run began:
        #: so nothing is written where one goes on.
        self._read = len(text)
        self._since = np.full(reach, self._read)
        if text:
            newest = [*reversed(text)]
            runs = _common_prefixes(newest)[1 : reach + 1]
            self._since[: len(runs)] -= np.array(runs, dtype=np.int64)
            self._tokens[self._at : self._at + len(newest)] = newest[:reach]

    def fork(self) -> Tail:
        """Return a tail that grows by itself."""
        # Not copy(), which takes longer than all of this (`make bench PART=bounds`, dry-one-token).
        forked = object.__new__(Tail)
        forked._at, forked._tokens = self._at, self._tokens.copy()
        forked._read, forked._since = self._read, self._since.copy()
        return forked

    def push(self, token_id: int) -> None:
        """Take in a token."""
        reach = len(self._since)
        if not self._at:
            self._at = _ROOM
            self._tokens[_ROOM:] = self._tokens[:reach]
        at = self._at
        self._read += 1
        self._since[self._tokens[at : at + reach] != token_id] = self._read
        self._at = at = at - 1
        self._tokens[at] = token_id

    @property
    def following(self) -> Numbers:
        """For each distance the token that came next so much earlier; -1 before the first."""
        return self._tokens[self._at : self._at + len(self._since)]

    def reached(self, enough: int | Numbers) -> Numbers:
        """Return the places, from 0 for distance 1 on, of runs of so many tokens and more.

        Args:
            enough: Tokens, for all distances or for each.
        """
        return (self._since <= self._read - enough).nonzero()[0]

    def runs(self, places: Numbers) -> Numbers:
        """Return the tokens of the runs at some places."""
        return self._read - self._since[places]


def _common_prefixes(tokens: Sequence[int]) -> list[int]:
    """Return for each index how many tokens from there on are the first ones over again.

    The Z algorithm (Gusfield, Algorithms on Strings, Trees, and Sequences, 1997, section 1.3),
    in a time proportional to the number of tokens.
    """
    length = len(tokens)
    same = [length] * length
    left = right = 0  # the known stretch that reaches furthest
    for index in range(1, length):
        count = min(same[index - left], right - index) if index < right else 0
        while index + count < length and tokens[count] == tokens[index + count]:
            count += 1
        same[index] = count
        if index + count > right:
            left, right = index, index + count
    return same
