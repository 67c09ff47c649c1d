"""Which fields of a schema hold token ids, floats, limits, or values that can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import msgspec


@lru_cache(maxsize=256)
def fields_without_limit(params_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the parameters whose ``None`` means no limit: those of type ``OrNoLimit``."""
    return tuple(_fields_with(_is_no_limit, params_type))


@lru_cache(maxsize=256)
def token_fields(params_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the parameters that have token ids."""
    return tuple(_fields_with(is_token_id, params_type))


@lru_cache(maxsize=256)
def float_fields(params_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the parameters that may have floats."""
    return tuple(_fields_with(_may_be_float, params_type))


@lru_cache(maxsize=256)
def changing_fields(params_type: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the parameters whose values, or lists, dicts and sets in them, may change."""
    types = msgspec.inspect
    unchanging = (
        types.NoneType,
        types.BoolType,
        types.IntType,
        types.FloatType,
        types.StrType,
        types.BytesType,
        types.EnumType,
        types.LiteralType,
        types.TupleType,
        types.VarTupleType,
        types.FrozenSetType,
        types.UnionType,
        types.Metadata,
    )
    return tuple(_fields_with(lambda kind: not isinstance(kind, unchanging), params_type))


def _fields_with(wanted: Callable[[Any], bool], params_type: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the fields whose type has a wanted part."""
    for field in getattr(msgspec.inspect.type_info(params_type), "fields", ()):
        if any(map(wanted, parts_of(field.type))):
            yield field.name


def parts_of(kind: Any) -> Iterator[Any]:
    """Yield a msgspec type description and all its parts, at any depth."""
    yield kind
    for inner in (
        getattr(kind, "type", None),
        getattr(kind, "item_type", None),
        getattr(kind, "value_type", None),
        *getattr(kind, "item_types", ()),
        *getattr(kind, "types", ()),
    ):
        if isinstance(inner, msgspec.inspect.Type):
            yield from parts_of(inner)


def is_token_id(kind: Any) -> bool:
    """Tell whether a msgspec type description is the type ``TokenId``."""
    return isinstance(kind, msgspec.inspect.Metadata) and bool((kind.extra or {}).get("token_id"))


def _is_no_limit(kind: Any) -> bool:
    extra = kind.extra if isinstance(kind, msgspec.inspect.Metadata) else None
    return bool((extra or {}).get("none_is_no_limit"))


def _may_be_float(kind: Any) -> bool:
    types = msgspec.inspect
    return isinstance(kind, types.FloatType | types.AnyType | types.CustomType)
