"""Mistakes in a policy file in words: the entry, the key, the expected and the given value.

``msgspec`` finds the mistakes; its messages name types of Python and hide the keys of tables.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import msgspec

from sglang_lp.catalogue.source import CatalogueSource
from sglang_lp.errors import did_you_mean, shown
from sglang_lp.policy.adapt import Adapt
from sglang_lp.policy.sections import Above, Ceiling, Chosen, Profile, Structured
from sglang_lp.policy.stock import Stock
from sglang_lp.trust.allow_list import Pin
from sglang_lp.trust.audit import Limits

_TABLES: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    (r"\.pin\[\d+\]", Pin),
    (r"\.limits", Limits),
    (r"\.adapt\[\d+\]", Adapt),
    (r"\.defaults|\.always\[\d+\]|\.profiles\[\.\.\.\]\.processors\[\d+\]", Chosen),
    (r"\.profiles\[\.\.\.\]", Profile),
    (r"\.ceilings\[\.\.\.\]", Ceiling),
    (r"\.structured", Structured),
    (r"\.catalogues\[\.\.\.\]", CatalogueSource),
)
_KINDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a table",
    "str": "a text",
}


def explain(message: str, raw: bytes, whole: type[msgspec.Struct]) -> str:
    """Return a message of msgspec about a policy in words.

    Args:
        message: The message.
        raw: The file.
        whole: The struct of the file.
    """
    try:
        tree = tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return f"expected TOML: {error}"
    problem, at, path = message.rpartition(" - at `$")
    path = path.removesuffix("`")
    try:
        place, value = _find(path if at else "", tree, message, whole)
    except (KeyError, IndexError, TypeError, ValueError):  # a key that looks like a path
        at = ""
    if not at:
        problem, path, place, value = message, "", "", tree
    keys = _keys(path, whole)
    before = f"{place}: " if place else ""
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL):
        hint = did_you_mean(unknown[1], keys)
        if not hint and "params" in keys:
            hint = "; a parameter of the processor goes into params"
        return f"{before}unknown key {shown(unknown[1])}; expected one of {', '.join(keys)}{hint}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", problem):
        return f"{before}expected a table with {missing[1]}, got none; its keys: {', '.join(keys)}"
    if problem.startswith("Invalid enum value"):
        known = [*(Stock if path == ".stock" else Above)]
        hint = did_you_mean(value, known)
        return f"{before}expected one of {', '.join(known)}, got {shown(value)}{hint}"
    if expected := re.match(r"Expected `([^`]+)`([^,]*)", problem):
        kinds = [_KINDS.get(kind, kind) for kind in expected[1].split(" | ") if kind != "null"]
        if "a number" in kinds and "a whole number" in kinds:
            kinds.remove("a whole number")
        what = " or ".join(kinds) + expected[2].replace("`", "")
        more = f" with {', '.join(keys)}" if kinds == ["a table"] and keys else ""
        return f"{before}expected {what}{more}, got {shown(value)}"
    return before + problem  # of a __post_init__


def _keys(path: str, whole: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the keys of the table at a path of msgspec; none where any key may be."""
    if not path:
        return whole.__struct_encode_fields__
    found = (of for pattern, of in _TABLES if re.fullmatch(pattern, path))
    return next((of.__struct_encode_fields__ for of in found), ())


def _find(
    path: str, tree: dict[str, Any], message: str, whole: type[msgspec.Struct]
) -> tuple[str, Any]:
    """Return a place with its keys in place of ``[...]``, and the value there.

    Args:
        path: As msgspec writes it: ``.ceilings[...].at_most``.
        tree: The file, which changes.
        message: msgspec's message about the file.
        whole: The struct of the file.

    Raises:
        KeyError, IndexError, TypeError, ValueError: The file has no such place.
    """
    place, value = "", tree
    for part in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", path):
        name, index = part
        if index == "...":
            name = _key_at_fault(value, tree, message, whole)
        value = value[name] if name else value[int(index)]  # type: ignore[index]
        place += f".{name}" if name else f"[{index}]"
    return place.removeprefix("."), value


def _key_at_fault(
    table: dict[str, Any], tree: dict[str, Any], message: str, whole: type[msgspec.Struct]
) -> str:
    """Return the key of a table of ``tree`` without which the file has another mistake or none."""
    entries = dict(table)
    for name, value in entries.items():
        table.clear()
        table[name] = value
        try:
            msgspec.convert(tree, whole)
        except msgspec.ValidationError as error:
            if str(error) == message:
                return name
    raise KeyError(message)
