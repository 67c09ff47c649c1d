"""Descriptions of the built-in processors, and of their parameters in words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import orjson

from sglang_lp.params import Parameters

#: SGLang keeps numbers in 32 bits; repeating that bound for each would be noise.
_NO_BOUND = 2**31 - 1


class Parameter(NamedTuple):
    """One parameter of a processor.

    Attributes:
        name: Its key in ``custom_params``.
        kind: Type and range in words.
        default: In JSON's notation, or ``"required"``.
        about: What it means, from the documentation of ``Params``; may be empty.
        schema: Its JSON schema, without ``null`` and without references.
    """

    name: str
    kind: str
    default: str
    about: str
    schema: Mapping[str, Any]


def list_parameters(processor: type[Any]) -> list[Parameter]:
    """Return the parameters of a processor, in the order of its ``Params``."""
    named = msgspec.json.schema(processor.Params)["$defs"]
    schema = named[processor.Params.__name__]
    kinds = [kind for kind in processor.Params.__mro__ if issubclass(kind, Parameters)]
    about: dict[str, str] = {}
    for kind in kinds:
        about = parse_attributes(inspect.getdoc(kind) or "") | about
    required = schema.get("required", ())
    return [
        Parameter(
            name,
            _name_kind(plain := _plain(kind, named)),
            "required" if name in required else _to_json(kind.get("default")),
            about.get(name, ""),
            plain,
        )
        for name, kind in schema["properties"].items()
    ]


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def summary(processor: type[Any]) -> str:
    """Return the first line about a class, as plain text: empty if there is none."""
    return to_markdown((inspect.getdoc(processor) or "").partition("\n")[0]).replace("`", "")


def parse_attributes(doc: str) -> dict[str, str]:
    """Return the text for each attribute in a docstring in Google style."""
    section = doc.partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def to_markdown(doc: str) -> str:
    """Return a docstring, with its names and roles as Markdown's code."""
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", doc).replace("``", "`")


def _plain(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema without references and without ``null``, which is the default then."""
    if "$ref" in schema:
        return _plain(named[schema["$ref"].rpartition("/")[2]], named)
    if "anyOf" in schema:
        options = [_plain(one, named) for one in schema["anyOf"] if one != {"type": "null"}]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if "items" in schema:
        return {**schema, "items": _plain(schema["items"], named)}
    return schema


def _name_kind(schema: Mapping[str, Any]) -> str:
    """Put a JSON schema of :func:`_plain` into words."""
    if "anyOf" in schema:
        return " or ".join(map(_name_kind, schema["anyOf"]))
    if schema.get("type") == "array":
        filled = "non-empty " if schema.get("minItems") else ""
        entries = re.sub(r"(^| or )(\w+)", r"\1\2s", _name_kind(schema["items"]))
        most = f", at most {schema['maxItems']:,} of them" if "maxItems" in schema else ""
        return f"{filled}list of {entries}{most}"
    if "enum" in schema:
        return " or ".join(_to_json(value) for value in schema["enum"])
    return f"{schema.get('type', 'any value')}{_name_bounds(schema)}"


def _name_bounds(schema: Mapping[str, Any]) -> str:
    """Put the range of a number into words."""
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most = schema.get("maximum", _NO_BOUND)
    if most >= _NO_BOUND:
        return f" >= {least:g}" if least is not None else ""
    if least is None:
        return f" above {above:g}, up to {most:g}"
    return f" from {least:g} to {most:g}"
