"""The end of a text and its runs, in a block of an arena.

The numbers are those of :class:`~sglang_lp.builtins.repetition.repeats.Tail`: tokens read, and the
place of the newest token; the tokens, newest first from that place on; then for each distance the
number of tokens read before its run began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.forms.compiled import compiled

if TYPE_CHECKING:
    from sglang_lp.builtins.repetition.repeats import Tail

__all__ = ["fits", "push", "read_of", "runs_of", "size_of", "tokens_of", "write"]

_READ, _AT = range(2)
_HEAD = 2
#: Tokens that are pushed before older ones are moved.
_ROOM = 256


def size_of(reach: int) -> int:
    """Return how many numbers a tail with so many distances has."""
    return _HEAD + _ROOM + 2 * reach


def fits(tail: Tail) -> bool:
    """Tell whether the tokens of a tail are int32."""
    return int(tail.following.max()) < 1 << 31


def write(numbers: Any, tail: Tail) -> None:
    """Write a tail into the numbers of a block."""
    numbers[_READ], numbers[_AT] = tail.read, _ROOM
    reach = len(tail.since)
    numbers[_HEAD + _ROOM : _HEAD + _ROOM + reach] = tail.following
    numbers[_HEAD + _ROOM + reach :] = tail.since


@compiled()
def read_of(numbers: Any, tail: Any) -> Any:
    """Return the number of tokens read."""
    return np.int64(numbers[tail + _READ])


@compiled()
def tokens_of(numbers: Any, tail: Any, reach: Any) -> Any:
    """Return for each distance the token that followed so much earlier, as a view."""
    first = tail + _HEAD + np.int64(numbers[tail + _AT])
    return numbers[first : first + reach]


@compiled()
def runs_of(numbers: Any, tail: Any, reach: Any) -> Any:
    """Return for each distance the number of tokens read before its run began, as a view."""
    first = tail + _HEAD + _ROOM + reach
    return numbers[first : first + reach]


@compiled()
def push(numbers: Any, tail: Any, reach: Any, token_id: Any) -> None:
    """Append a token."""
    first = tail + _HEAD
    at = np.int64(numbers[tail + _AT])
    if at == 0:
        at = np.int64(_ROOM)
        for place in range(first + reach - 1, first - 1, -1):
            numbers[place + _ROOM] = numbers[place]
    read = np.int32(numbers[tail + _READ] + 1)
    numbers[tail + _READ] = read
    earlier = numbers[first + at : first + at + reach]
    since = runs_of(numbers, tail, reach)
    token = np.int32(token_id)
    for place in range(len(since)):  # without a branch, so that several are compared at once
        same = -np.int32(earlier[place] == token)
        since[place] = (since[place] & same) | (read & ~same)
    numbers[tail + _AT] = at - 1
    numbers[first + at - 1] = token
