"""Extreme values by type: beyond float32 and int32, empty, not finite, deep, long, another type."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from hunt.values import VOCAB

__all__ = ["extremes"]


def _deep(levels: int, leaf: Any) -> Any:
    """Nest a list."""
    for _ in range(levels):
        leaf = [leaf]
    return leaf


_LONG = 100_000
_BEYOND = (math.inf, -math.inf, math.nan)
_INTEGERS = (-1, 0, 1, 3, VOCAB, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 1.5)
_FLOATS = (*_BEYOND, -1, 0, 1e-310, 1e-44, 1e-5, 1e38, 1e39, -1e39, 1e300, 2**70)
_TEXTS = ("", "a", "\ud800", "\0", "a" * _LONG, "(", "{}", "^(\\s?\\w?.?)+\\x01$", 5)
_IDS: tuple[Any, ...] = (
    *([], [0], [-1], [VOCAB], [2**31], [2**63], [None], [[]], [[1]], ["1"], [1.5], 5),
    *([1] * _LONG, [*range(VOCAB)]),
)
_DICTS: tuple[Any, ...] = (
    *({}, {"a": None}, {"a": "b"}, {"": {}}, {"id": "a"}, {"a": _deep(200, 1)}, []),
    *({str(VOCAB): 1}, {"-1": 1}, {"id": {}}),
    *({"5": value} for value in (1e39, -1e39, *_BEYOND, "x", None)),
    *({str(token): value for token in range(VOCAB)} for value in (-1e39, 1e38)),
)
_FLAGS: tuple[Any, ...] = (True, False, 2, {}, [True, None])
#: Values of any type.
_ANY: tuple[Any, ...] = (None, "x", [], [None], {}, True, -1, 1.5, ["a"], _deep(200, 1))
#: The number of copies fills the machine's memory first.
_COPIES = (-1, 0, 2, 3, 40, 1.5, "2", True, *_BEYOND)
_FEW = {"n", "best_of", "beam_width"}


@cache
def extremes(name: str, annotation: str) -> Sequence[Any]:
    """Return the extreme values of a field, the most of its type, and values of other types.

    Args:
        name: Of the field.
        annotation: Its type as text.
    """
    return _COPIES if name in _FEW else [*_by_type(annotation)] * 2 + [*_ANY]


def _by_type(annotation: str) -> Iterator[Any]:
    words = {*re.findall(r"\w+", annotation.lower())}
    if "bool" in words:
        yield from _FLAGS
    if "float" in words:
        yield from _FLOATS
    if "list" in words or "set" in words:
        yield from _IDS
    if "int" in words:
        yield from _INTEGERS
    if "str" in words:
        yield from _TEXTS
    if words & {"dict", "struct", "mapping"}:
        yield from _DICTS
