"""Parameter values as JSON holds them and as SGLang carries them between its processes."""

from __future__ import annotations

import math
from operator import index
from typing import Any

from sglang_lp.errors import InvalidParameter, shown

__all__ = ["READY", "fresh", "nested", "plain"]

_LISTS = (list, tuple, set, frozenset, range)

#: Types that need no look at the value.
READY = {int, str, bool, type(None)}
_NUMBERS_AND_TEXT = {int, float, str}


def plain(processor: str, key: str, value: Any) -> Any:
    """Return a value as JSON's: a scalar, a flat list, or a flat object, newly made.

    Tuples, sets and ranges become lists; whatever has ``tolist()``, as the numbers and arrays of
    NumPy and torch do, becomes Python's numbers and lists.

    Args:
        processor: Class name of the processor, for the message.
        key: Name of the parameter, for the message.
        value: Anything. Not changed.

    Raises:
        InvalidParameter: It is not such a value: SGLang carries no other.
    """
    if type(value) in READY:
        return value
    value = _native(value)
    if isinstance(value, _LISTS):
        if {*map(type, value)} <= READY:
            return [*value]
        return [_scalar(processor, key, item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise InvalidParameter(processor, key, "expected text for the keys of an object")
        return {name: _scalar(processor, key, item) for name, item in value.items()}
    return _scalar(processor, key, value)


def fresh(value: Any) -> Any:
    """Return a copy of what :func:`plain` returned, so that its reader may change it."""
    return value.copy() if isinstance(value, list | dict) else value


def nested(value: Any) -> Any:
    """Return prompts with lists and numbers of Python in place of those of NumPy and torch.

    Args:
        value: A text, token ids, embeddings, or a list of any of these. Not changed.
    """
    value = _native(value)
    if isinstance(value, list | tuple) and not {*map(type, value)} <= _NUMBERS_AND_TEXT:
        return [nested(item) for item in value]
    return value


def _native(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _scalar(processor: str, key: str, value: Any) -> Any:
    value = _native(value)
    if type(value) in READY:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return index(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidParameter(processor, key, "expected a finite number")
        return float(value)
    raise InvalidParameter(
        processor,
        key,
        "SGLang carries numbers, text, true, false and null, and flat lists and dicts of them; "
        f"got {shown(value)}",
    )
