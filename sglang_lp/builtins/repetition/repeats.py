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

    Attributes:
        runs: For each distance from 1 on, how many of the newest tokens are the same as those so
            much earlier. Shape ``(reach,)``, int64; changes with every token.
    """

    __slots__ = ("_at", "_tokens", "runs")

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
        self.runs = np.zeros(reach, dtype=np.int64)
        if text:
            newest = [*reversed(text)]
            runs = _common_prefixes(newest)[1 : reach + 1]
            self.runs[: len(runs)] = runs
            self._tokens[self._at : self._at + len(newest)] = newest[:reach]

    def fork(self) -> Tail:
        """Return a tail that grows by itself."""
        # Not copy(), which takes longer than all of this (`make bench-bounds`, dry-one-token).
        forked = object.__new__(Tail)
        forked._at, forked._tokens = self._at, self._tokens.copy()
        forked.runs = self.runs.copy()
        return forked

    def push(self, token_id: int) -> None:
        """Take in a token."""
        runs = self.runs
        reach = len(runs)
        if not self._at:
            self._at = _ROOM
            self._tokens[_ROOM:] = self._tokens[:reach]
        at = self._at
        runs += 1
        runs *= self._tokens[at : at + reach] == token_id
        self._at = at = at - 1
        self._tokens[at] = token_id

    @property
    def following(self) -> Numbers:
        """For each distance the token that came next so much earlier; -1 before the first."""
        return self._tokens[self._at : self._at + len(self.runs)]


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
