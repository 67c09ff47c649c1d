"""Makes a failing case smaller as long as it fails: fewer requests, fields, entries, characters.

The cuts work on the JSON as it is sent, not on the choices that Hypothesis drew it from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hunt.sent import Sent

__all__ = ["shrink"]

#: Without these there is no request, unless one of them is odd.
_NEEDED = {"model", "messages", "prompt", "input", "role", "content", "max_tokens"}


def shrink(case: Sequence[Sent], fails: Callable[[Sequence[Sent]], bool]) -> list[Sent]:
    """Return a smallest case that still fails.

    Args:
        case: One that fails.
        fails: Asks a case; returns false once there is no time left.
    """
    best, is_smaller = [*case], True
    while is_smaller:
        is_smaller = False
        for smaller in _cuts(best):
            if fails(smaller):
                best, is_smaller = smaller, True
                break
    return best


def _cuts(case: Sequence[Sent]) -> Iterator[list[Sent]]:
    # A server that a request ends is started again: alone, the innocent ones end none.
    yield from ([sent] for sent in case if len(case) > 2)
    for place in range(len(case)):
        yield [*case[:place], *case[place + 1 :]]
    for place, sent in enumerate(case):
        if sent.leave_after is not None:
            yield [*case[:place], replace(sent, leave_after=None), *case[place + 1 :]]
        for body in _smaller(sent.body, _NEEDED - sent.odd):
            yield [*case[:place], replace(sent, body=body), *case[place + 1 :]]


def _smaller(value: Any, needed: AbstractSet[str]) -> Iterator[Any]:
    """Yield values with a part less, the largest parts first; objects keep the needed names."""
    if isinstance(value, Mapping):
        free = [name for name in value if name not in needed]
        half = len(free) // 2
        for gone in (free[:half], free[half:]) if half > 1 else ():
            yield {name: one for name, one in value.items() if name not in gone}
        for name in free:
            yield {other: one for other, one in value.items() if other != name}
        for name, one in value.items():
            yield from ({**value, name: smaller} for smaller in _smaller(one, needed))
    elif isinstance(value, list):
        half = len(value) // 2
        yield from (value[:half], value[half:]) if half > 1 else ()
        yield from (value[:at] + value[at + 1 :] for at in range(len(value)) if half)
        for at, one in enumerate(value):
            yield from (
                [*value[:at], smaller, *value[at + 1 :]] for smaller in _smaller(one, needed)
            )
