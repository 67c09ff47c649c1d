"""The end of a text and its runs, in a block of an arena.

The numbers are those of :class:`~sglang_lp.builtins.repetition.repeats.Tail`: tokens read, and the
place of the newest token; the tokens, newest first from that place on; then for each distance the
number of tokens read before its run began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import DEPTH, SAVE, TOKEN

if TYPE_CHECKING:
    from sglang_lp.builtins.repetition.repeats import Tail

__all__ = [
    "enter",
    "fits",
    "put_back",
    "read_of",
    "runs_of",
    "saved_size",
    "size_of",
    "tokens_of",
    "write",
]

_READ, _AT = range(2)
_HEAD = 2
#: Tokens that are pushed before older ones are moved; at least ``MOST_NODES``.
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
def _make_room(numbers: Any, tail: Any, reach: Any, count: Any) -> None:
    """Move the tokens if so many more have no room before them."""
    at = np.int64(numbers[tail + _AT])
    if at >= count:
        return
    first = tail + _HEAD + at
    for place in range(first + reach - 1, first - 1, -1):
        numbers[place + _ROOM - at] = numbers[place]
    numbers[tail + _AT] = _ROOM


@compiled()
def _save(numbers: Any, tail: Any, reach: Any, saved: Any, at: Any) -> None:
    """Copy what later tokens change, if there is room for these."""
    saved[at : at + _HEAD] = numbers[tail : tail + _HEAD]
    saved[at + _HEAD : at + _HEAD + reach] = runs_of(numbers, tail, reach)


@compiled()
def put_back(numbers: Any, tail: Any, reach: Any, saved: Any, depth: Any) -> None:
    """Forget all drafted tokens after so many.

    Args:
        numbers: Has the tail.
        tail: Its offset.
        reach: Number of distances.
        saved: As for :func:`enter`.
        depth: Number of drafted tokens.
    """
    at = depth * (_HEAD + reach)
    numbers[tail : tail + _HEAD] = saved[at : at + _HEAD]
    runs_of(numbers, tail, reach)[:] = saved[at + _HEAD : at + _HEAD + reach]


@compiled()
def _push(numbers: Any, tail: Any, reach: Any, token_id: Any) -> None:
    """Append a token."""
    first = tail + _HEAD
    _make_room(numbers, tail, reach, 1)
    at = np.int64(numbers[tail + _AT])
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


@compiled()
def enter(
    numbers: Any, tail: Any, reach: Any, visit: Any, reached: Any, deepest: Any, saved: Any
) -> Any:
    """Append the token of a visit, and return how many drafted tokens its path has.

    Args:
        numbers: Has the tail.
        tail: Its offset.
        reach: Number of distances.
        visit: The visit, as in :class:`~sglang_lp.forms.form.Visits`.
        reached: What this function returned for the visit before.
        deepest: Most drafted tokens of a path.
        saved: Keeps what is needed again: ``deepest`` times :func:`saved_size` numbers.
    """
    depth = visit[DEPTH]
    if 0 < depth <= reached:
        put_back(numbers, tail, reach, saved, depth - 1)
    _push(numbers, tail, reach, visit[TOKEN])
    if visit[SAVE]:
        if depth == 0:
            _make_room(numbers, tail, reach, deepest)
        _save(numbers, tail, reach, saved, depth * (_HEAD + reach))
    return depth


@compiled()
def saved_size(reach: Any) -> Any:
    """Return how many numbers are kept of a tail at each node of a path."""
    return _HEAD + reach
