"""Ceilings: the largest number that a request may give a parameter, whichever class has it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from sglang_lp.adapters import AdaptedProcessor
from sglang_lp.errors import InvalidParameter, PolicyError, did_you_mean, shown
from sglang_lp.params import Parameters, fields_without_limit, replaced
from sglang_lp.policy.sections import Above, Ceiling
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.links import Link


def refusal(processor: type[Any], name: str, most: float, got: object) -> InvalidParameter:
    """Return the error of a request that asks for more than a ceiling."""
    return InvalidParameter(
        processor.__name__,
        name,
        f"expected at most {most} on this server, got {shown(got)}; ask for less",
    )


def lower(link: Link, ceilings: Mapping[str, Ceiling]) -> Link:
    """Lower the numbers of a link to their ceilings.

    Where a parameter that is left out means no limit, it gets the ceiling.

    Raises:
        InvalidParameter: A number is above a ceiling that refuses, or that is below the range of
            the parameter.
    """
    if issubclass(link.processor, AdaptedProcessor):
        return link  # see lower_arguments()
    changes: dict[str, Any] = {}
    kind: type[Parameters] = type(link.params)
    for name in ceilings.keys() & {*link.params.__struct_fields__}:
        value = getattr(link.params, name)
        if value is None and name in fields_without_limit(kind):
            changes[name] = math.floor(ceilings[name].at_most)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not value <= ceilings[name].at_most:
            changes[name] = _lowered(link, name, value, ceilings[name])
    if not changes:
        return link
    for name, value in changes.items():
        if not _is_in_range(kind, name, value):
            came = getattr(link.params, name)
            raise refusal(link.processor, name, ceilings[name].at_most, came)
    return link._replace(params=replaced(link.params, link.processor.__name__, **changes))


def lower_arguments(link: Link, ceilings: Mapping[str, Ceiling]) -> Link:
    """Lower the numbers of a class without a schema.

    Called before parameters are fitted, which makes an object of such a class to try them. It may
    treat ``null`` as no limit, so it gets the ceiling in its place, and in place of a default of
    ``None``.

    Raises:
        InvalidParameter: As for :func:`lower`; or a parameter with a ceiling is not a number.
    """
    if not issubclass(link.processor, AdaptedProcessor):
        return link
    values = dict(link.params.values)
    for name, default in link.processor.defaults().items():
        if name in ceilings and name not in values:
            held = _lower_one(link, name, default, ceilings[name])
            if held is not default:
                values[name] = held
    values = _lower_all(link, values, ceilings)
    if values == link.params.values:
        return link
    return link._replace(params=msgspec.structs.replace(link.params, values=values))


def check_names(ceilings: Iterable[str], processors: Iterable[type[Any]]) -> None:
    """Check that each ceiling is on a number that some class reads.

    Args:
        ceilings: Names of parameters.
        processors: All classes that a request may run.

    Raises:
        PolicyError: No class has a number of that name.
    """
    known = [*processors]
    for name in ceilings:
        if not any(_could_read(processor, name) for processor in known):
            numbers = {number for processor in known for number in _numbers(processor)}
            raise PolicyError(
                f"ceilings.{name}: no class of this policy has a parameter of this name that "
                f"is a number{did_you_mean(name, sorted(numbers)) or '; correct the name'}"
            )


def _could_read(processor: type[Any], name: str) -> bool:
    """Tell whether a class may read a number of this name."""
    if not issubclass(processor, LogitProcessor) or issubclass(processor, AdaptedProcessor):
        return True
    return name in _numbers(processor)


def _numbers(processor: type[Any]) -> list[str]:
    """Return the parameters of a class that are numbers; none for a class without a schema."""
    if not issubclass(processor, LogitProcessor):
        return []
    fields = getattr(msgspec.inspect.type_info(processor.Params), "fields", ())
    return [field.name for field in fields if _is_number(field.type)]


def _lower_all(
    link: Link, values: Mapping[str, Any], ceilings: Mapping[str, Ceiling]
) -> dict[str, Any]:
    """Lower the values of a class without a schema, including those in nested objects.

    Such a class may turn a text, or true and false, into a number.
    """
    lowered = dict(values)
    for name, value in values.items():
        if isinstance(value, dict):
            lowered[name] = _lower_all(link, value, ceilings)
        elif name in ceilings:
            if value is not None and _number(value) is None:
                raise refusal(link.processor, name, ceilings[name].at_most, value)
            lowered[name] = _lower_one(link, name, value, ceilings[name])
    return lowered


def _lower_one(link: Link, name: str, value: Any, ceiling: Ceiling) -> Any:
    """Lower a value that a class without a schema would be given; no number means no limit."""
    number = _number(value)
    if number is None:
        return ceiling.at_most
    if number <= ceiling.at_most:
        return value
    return type(value)(_lowered(link, name, value, ceiling))


def _lowered(link: Link, name: str, value: Any, ceiling: Ceiling) -> Any:
    if ceiling.above == Above.REFUSE:
        raise refusal(link.processor, name, ceiling.at_most, value)
    most = ceiling.at_most
    return math.floor(most) if isinstance(value, int) else type(value)(most)


def _is_in_range(kind: type[Parameters], name: str, value: float) -> bool:
    """Tell whether a number is in the range of a parameter."""
    try:
        msgspec.convert(value, _types_of(kind)[name])
    except msgspec.ValidationError:
        return False
    return True


@lru_cache(maxsize=256)
def _types_of(kind: type[Parameters]) -> dict[str, Any]:
    """Return the types of a class's parameters, with their ranges."""
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _number(value: Any) -> float | None:
    """Return a value as Python reads it as a number; ``None`` if it does not."""
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
