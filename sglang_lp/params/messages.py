"""Messages for parameters that msgspec refuses, in the words of a caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sglang_lp.errors import InvalidParameter, did_you_mean, shown
from sglang_lp.params.schema import is_token_id, parts_of


def unknown(name: object, fields: tuple[str, ...]) -> str:
    """Return the message for a parameter that a processor does not have.

    Args:
        name: The parameter.
        fields: The parameters that the processor has.
    """
    hint = did_you_mean(name, fields) or f"; its parameters: {', '.join(fields) or 'none'}"
    return f"unknown parameter {shown(name)}{hint}"


# Compiled when they are needed: the client imports this module.
_MISSING = r"Object missing required field `(?P<name>\w+)`"
_AT = r"(?P<problem>.*) - at `\$\.(?P<name>\w+)(?P<rest>.*)`"


def translated(
    processor: str, params_type: type[msgspec.Struct], given: Mapping[str, Any], text: str
) -> InvalidParameter:
    """Return msgspec's error with the name of the parameter and the given value.

    Args:
        processor: The processor's class name.
        params_type: The processor's ``Params``.
        given: The parameters of the request.
        text: msgspec's message, or the message of a ``__post_init__``.
    """
    if missing := re.match(_MISSING, text):
        return InvalidParameter(processor, missing["name"], "required, but not given")
    at, problem = described(params_type, given.__getitem__, text)
    if at is not None:
        return InvalidParameter(processor, at, problem)
    name, colon, problem = text.partition(": ")  # from a __post_init__
    if colon and name in params_type.__struct_fields__:
        return InvalidParameter(processor, name, problem)
    return InvalidParameter(processor, None, text.replace("`", ""))


def described(
    struct: type[msgspec.Struct], read: Callable[[str], Any], text: str
) -> tuple[str | None, str]:
    """Return the field that msgspec refuses, or ``None``, and the problem in plain words.

    Args:
        struct: The type that the fields do not fit.
        read: Return the given value of a field.
        text: msgspec's message.
    """
    at = re.match(_AT, text, re.DOTALL)
    if at is None:
        return None, text.replace("`", "")
    problem = at["problem"].replace("`", "")
    if problem.startswith("Invalid enum value"):  # it repeats whatever came
        problem = f"expected {_choices(struct, at['name'])}"
    entries = "" if at["rest"] else _entries(struct, at["name"])
    problem = _plain(problem[0].lower() + problem[1:], entries)
    place = f" at {at['rest']}" if at["rest"] else ""
    came = _shown_as_json(_pick(read(at["name"]), at["rest"]))
    return at["name"], f"{problem}, got {came}{place}"


def _plain(problem: str, entries: str) -> str:
    """Return a message of msgspec in plain words, without what came.

    Args:
        problem: Such as ``expected array | null, got str``.
        entries: Plural of the entries of the parameter's list, or ``""``.
    """
    expected, _, came = problem.partition(", got ")
    unit = "entries" if "array" in expected or "object" in expected else "characters"
    expected = expected.replace(" | null", "").replace(" | ", " or ")
    for pattern, plain in (
        (r" of length >= (\d+)", rf" of \1 or more {unit}"),
        (r" of length <= (\d+)", rf" of at most \1 {unit}"),
        (r" >= (\S+)", r" of \1 or more"),
        (r" <= (\S+)", r" of at most \1"),
        (r" > (\S+)", r" above \1"),
        (r"\barray\b", f"a list of {entries}" if entries and " of " not in expected else "a list"),
    ):
        expected = re.sub(pattern, plain, expected)
    example = _EXAMPLES.get(entries)
    for word, (said, of_type) in _PLAIN.items():
        if re.search(rf"\b{word}\b", expected):
            expected, example = re.sub(rf"\b{word}\b", said, expected, count=1), of_type
            break
    # Where the type is right, the bound says enough.
    return f"{expected}, such as {example}" if example and came.isalpha() else expected


#: Types of msgspec's messages in plain words, each with an example.
_PLAIN = {
    "bool": ("true or false", None),
    "float": ("a number", "0.5"),
    "int": ("a whole number", "8"),
    "object": ("an object", '{"key": 1}'),
    "str": ("a text", '"yes"'),
}
#: Lists by their entries.
_EXAMPLES = {
    "token ids": "[15, 16]",
    "whole numbers": "[1, 2]",
    "numbers": "[0.5, 1]",
    "texts": '["yes", "no"]',
}


def _entries(params_type: type[msgspec.Struct], name: str) -> str:
    """Return the plural of the entries of a parameter that is a list, or an empty text."""
    types = msgspec.inspect
    plurals: dict[Any, str] = {
        types.StrType: "texts",
        types.IntType: "whole numbers",
        types.FloatType: "numbers",
    }
    for field in getattr(types.type_info(params_type), "fields", ()):
        for part in parts_of(field.type) if field.name == name else ():
            item = getattr(part, "item_type", None)
            if item is not None:
                inner = [*parts_of(item)]
                if any(map(is_token_id, inner)):
                    return "token ids"
                return next((plurals[type(one)] for one in inner if type(one) in plurals), "")
    return ""


def _shown_as_json(value: object) -> str:
    """Return a value of a request for a message, in the words of JSON."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return shown(value)


def _choices(params_type: type[msgspec.Struct], name: str) -> str:
    """Return the fixed values of a parameter, for a message."""
    types = msgspec.inspect
    found: list[Any] = []
    for field in getattr(types.type_info(params_type), "fields", ()):
        for part in parts_of(field.type) if field.name == name else ():
            if isinstance(part, types.LiteralType):
                found += part.values
            elif isinstance(part, types.EnumType):
                found += [member.value for member in part.cls]
    return " or ".join(map(repr, found))


def _pick(value: Any, rest: str) -> Any:
    """Return the part of a value that a msgspec path such as ``[3]`` names."""
    index = re.fullmatch(r"\[(\d+)\]", rest)
    return value[int(index[1])] if index else value
