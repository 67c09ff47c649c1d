"""Parameter values as JSON holds them and as SGLang carries them between its processes."""

from __future__ import annotations

import math
from operator import index
from typing import Any

from sglang_lp.errors import InvalidParameter, shown

__all__ = ["copy_value", "to_json_value", "to_lists"]

_LISTS = (list, tuple, set, frozenset, range)

#: Types whose every value is JSON's.
_READY = {int, str, bool, type(None)}
_NUMBERS_AND_TEXT = {int, float, str}


def to_json_value(processor: str, key: str, value: Any) -> Any:
    """Return a new JSON value: a scalar, a flat list, or a flat object.

    Tuples, sets and ranges become lists. Values with ``tolist()``, such as numbers and arrays of
    NumPy and torch, become Python's numbers and lists.

    Args:
        processor: Class name of the processor, for the message.
        key: Name of the parameter, for the message.
        value: Any value. Not changed.

    Raises:
        InvalidParameter: The value cannot become JSON that SGLang carries.
    """
    if type(value) in _READY:
        return value
    value = _to_python(value)
    if isinstance(value, _LISTS):
        if {*map(type, value)} <= _READY:
            return [*value]
        return [_to_scalar(processor, key, item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise InvalidParameter(processor, key, "expected text for the keys of an object")
        return {name: _to_scalar(processor, key, item) for name, item in value.items()}
    return _to_scalar(processor, key, value)


def copy_value(value: Any) -> Any:
    """Return a copy of a value of :func:`to_json_value`, which the caller may change."""
    return value.copy() if isinstance(value, list | dict) else value


def to_lists(value: Any) -> Any:
    """Return prompts with lists and numbers of Python in place of those of NumPy and torch.

    Args:
        value: A text, token ids, embeddings, or a list of any of these. Not changed.
    """
    value = _to_python(value)
    if isinstance(value, list | tuple) and not {*map(type, value)} <= _NUMBERS_AND_TEXT:
        return [to_lists(item) for item in value]
    return value


def _to_python(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _to_scalar(processor: str, key: str, value: Any) -> Any:
    value = _to_python(value)
    if type(value) in _READY:
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
