"""The fields of SGLang's request classes, read from the classes: names and types."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

__all__ = ["Field", "fields_of"]


class Field(NamedTuple):
    """A field of a request.

    Attributes:
        name: On the wire.
        type: Its annotation as text.
        is_required: Whether a request must have it.
    """

    name: str
    type: str
    is_required: bool


@cache
def fields_of(cls: type) -> Mapping[str, Field]:
    """Map the names of a dataclass, a pydantic model or a msgspec struct to its fields."""
    return {field.name: field for field in _read(cls)}


def _read(cls: Any) -> Iterator[Field]:
    import msgspec
    import pydantic

    if issubclass(cls, msgspec.Struct):
        for one in msgspec.structs.fields(cls):
            yield Field(one.name, _text(one.type), one.required)
    elif issubclass(cls, pydantic.BaseModel):
        for name, info in cls.model_fields.items():
            yield Field(info.alias or name, _text(info.annotation), info.is_required())
    elif dataclasses.is_dataclass(cls):
        missing = dataclasses.MISSING
        for own in dataclasses.fields(cls):
            has_none = own.default is missing and own.default_factory is missing
            yield Field(own.name, _text(own.type), has_none)


def _text(annotation: Any) -> str:
    """Return an annotation without the modules of its names."""
    text = annotation if isinstance(annotation, str) else str(annotation)
    return re.sub(r"<class '(.*?)'>|\b[a-z_][\w.]*\.(?=[A-Z])", r"\1", text)
