"""Repetitions at the end of a text: for each distance, the run of tokens that repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

#: Tokens that are pushed before older ones are moved.
_ROOM = 256

#: Runs of fewer tokens are told with numpy, a token at a time, if most distances have none; others
#: in linear time, in Python.
_SHORT = 16


class Tail:
    """The end of a text, and its runs.

    For each distance from 1 on, a run is the longest end of the text that also occurs so many
    tokens earlier. A token costs some operations on arrays with a number for each distance.

    Attributes:
        read: Number of tokens.
        since: For each distance the number of tokens before its run began, which changes only where
            a run breaks.
    """

    __slots__ = ("_at", "_tokens", "read", "since")

    def __init__(self, reach: int, text: Sequence[int] | Numbers = ()) -> None:
        """Read a text.

        Args:
            reach: The largest distance.
            text: The tokens so far; runs are counted from the first of them.
        """
        import numpy as np

        #: The tokens, newest first, from ``_at`` on; -1 before the first token.
        self._tokens = np.full(_ROOM + reach, -1)
        self._at = _ROOM
        self.read = len(text)
        self.since = np.full(reach, self.read)
        if self.read:
            newest = np.array(text)[::-1]
            runs = _runs(newest, reach)
            self.since[: len(runs)] -= runs
            self._tokens[self._at : self._at + len(newest)] = newest[:reach]

    def fork(self) -> Tail:
        """Return a copy that grows on its own."""
        # Not copy(), which takes longer than this (`make bench PART=bounds`, dry-one-token).
        forked = object.__new__(Tail)
        forked._at, forked._tokens = self._at, self._tokens.copy()
        forked.read, forked.since = self.read, self.since.copy()
        return forked

    def push(self, token_id: int) -> None:
        """Append a token."""
        reach = len(self.since)
        if not self._at:
            self._at = _ROOM
            self._tokens[_ROOM:] = self._tokens[:reach]
        at = self._at
        self.read += 1
        self.since[self._tokens[at : at + reach] != token_id] = self.read
        self._at = at = at - 1
        self._tokens[at] = token_id

    @property
    def following(self) -> Numbers:
        """For each distance the token that followed so much earlier; -1 before the first token."""
        return self._tokens[self._at : self._at + len(self.since)]

    def reached(self, enough: int | Numbers) -> Numbers:
        """Return the places of runs of at least ``enough`` tokens; place 0 is distance 1.

        Args:
            enough: Number of tokens, for all distances or for each.
        """
        return (self.since <= self.read - enough).nonzero()[0]

    def runs(self, places: Numbers) -> Numbers:
        """Return the number of tokens of the runs at some places."""
        return self.read - self.since[places]

    def tokens_to(self, enough: Numbers) -> int:
        """Return how many tokens have to come, at least, until a run has ``enough`` tokens.

        Args:
            enough: Number of tokens for each distance.
        """
        return int((self.since + enough).min()) - self.read


def _runs(newest: Numbers, reach: int) -> Numbers:
    """Return the number of tokens of the run at each distance from 1 on.

    Args:
        newest: A text, newest token first.
        reach: The largest distance.
    """
    import numpy as np

    runs = np.zeros(min(reach, len(newest) - 1), dtype=np.int64)
    places = (newest[1 : len(runs) + 1] == newest[0]).nonzero()[0]
    for length in range(1, _SHORT):
        if not len(places):
            return runs
        if len(places) > len(runs) // 2:
            break
        runs[places] = length
        places = places[places < len(newest) - 1 - length]
        places = places[newest[places + 1 + length] == newest[length]]
    if len(places):
        runs[:] = _common_prefixes(newest.tolist())[1 : reach + 1]
    return runs


def _common_prefixes(tokens: Sequence[int]) -> list[int]:
    """Return for each index how many tokens from there on repeat the beginning.

    The Z algorithm (Gusfield, Algorithms on Strings, Trees, and Sequences, 1997, section 1.3),
    in linear time.
    """
    length = len(tokens)
    same = [length] * length
    left = right = 0  # the known repetition that reaches furthest
    for index in range(1, length):
        count = min(same[index - left], right - index) if index < right else 0
        while index + count < length and tokens[count] == tokens[index + count]:
            count += 1
        same[index] = count
        if index + count > right:
            left, right = index, index + count
    return same
