"""Ceilings: the most that a request may set a number to, whichever processor has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from sglang_lp.adapters import AdaptedProcessor
from sglang_lp.errors import InvalidParameter, shown
from sglang_lp.params import replaced
from sglang_lp.policy.decisions import Above, Ceiling
from sglang_lp.policy.links import Link, thinks
from sglang_lp.policy.thinking import BUDGET
from sglang_lp.processor import LogitProcessor

__all__ = ["could_reach", "lower", "refusal"]


def refusal(processor: type[Any], name: str, most: float, got: object) -> InvalidParameter:
    """Return the error of a request that asks for more than a ceiling."""
    return InvalidParameter(
        processor.__name__,
        name,
        f"expected at most {most} on this server, got {shown(got)}; ask for less, or leave it out",
    )


def lower(link: Link, ceilings: Mapping[str, Ceiling]) -> Link:
    """Hold a link to the ceilings on its numbers, but for the thinking budget.

    Raises:
        InvalidParameter: One is above a ceiling that refuses that; or a class without a schema
            gets something else than a number where there is a ceiling.
    """
    if issubclass(link.processor, AdaptedProcessor):
        values = _lower_all(link, link.params.values, ceilings)
        return link._replace(params=msgspec.structs.replace(link.params, values=values))
    changes = {}
    for name in ceilings.keys() & {*link.params.__struct_fields__}:
        value = getattr(link.params, name)
        if (name == BUDGET and thinks(link)) or isinstance(value, bool):
            continue
        if isinstance(value, int | float) and not value <= ceilings[name].at_most:
            changes[name] = _lowered(link, name, value, ceilings[name])
    if not changes:
        return link
    return link._replace(params=replaced(link.params, link.processor.__name__, **changes))


def could_reach(processor: type[Any], name: str) -> bool:
    """Tell whether a class may read a number of this name."""
    if not issubclass(processor, LogitProcessor) or issubclass(processor, AdaptedProcessor):
        return True
    fields = getattr(msgspec.inspect.type_info(processor.Params), "fields", ())
    return any(field.name == name and _is_number(field.type) for field in fields)


def _lower_all(
    link: Link, values: Mapping[str, Any], ceilings: Mapping[str, Ceiling]
) -> dict[str, Any]:
    """Hold values to the ceilings on their names, wherever in them a name stands.

    The class may make a number of a text, or of true and false.
    """
    lowered = dict(values)
    for name, value in values.items():
        if isinstance(value, dict):
            lowered[name] = _lower_all(link, value, ceilings)
        elif value is not None and name in ceilings:
            ceiling = ceilings[name]
            number = _number(value)
            if number is None:
                raise refusal(link.processor, name, ceiling.at_most, value)
            if not number <= ceiling.at_most:
                lowered[name] = type(value)(_lowered(link, name, value, ceiling))
    return lowered


def _lowered(link: Link, name: str, value: Any, ceiling: Ceiling) -> Any:
    if ceiling.above == Above.REFUSE:
        raise refusal(link.processor, name, ceiling.at_most, value)
    most = ceiling.at_most
    return math.floor(most) if isinstance(value, int) else type(value)(most)


def _number(value: Any) -> float | None:
    """Return what Python would make of a value as a number."""
    if not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _is_number(kind: Any) -> bool:
    types = msgspec.inspect
    if isinstance(kind, types.Metadata):
        return _is_number(kind.type)
    if isinstance(kind, types.UnionType):
        return any(map(_is_number, kind.types))
    return isinstance(kind, types.IntType | types.FloatType)
