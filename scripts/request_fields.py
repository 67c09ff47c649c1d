"""Writes the page of SGLang's own request fields, from the table that the gates read.

.venv/bin/python -m scripts.request_fields
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args, get_origin

import msgspec

from benchmarks.tables import table
from sglang_lp.server.gate.request_fields import (
    BODY,
    CLASSES,
    FLOAT_MAX,
    FLOAT_TINY,
    SAMPLING,
    FieldRow,
    Owner,
    Session,
    unknown_to,
)

__all__ = ["PAGE", "fields_of", "tables", "unknown"]


PAGE = Path("docs/request-fields.md")
_NAMES: dict[Any, str] = {
    None: "nothing: SGLang sets it",
    Any: "as SGLang and the processors take it",
    Session: "an object of " + ", ".join(f"`{name}`" for name in Session.__struct_fields__),
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
}
_BOUNDS = {
    2**31 - 1: "2^31 - 1",
    2**63 - 1: "2^63 - 1",
    -(2**63): "-2^63",
    FLOAT_MAX: "the greatest of float32",
    -FLOAT_MAX: "the least of float32",
    FLOAT_TINY: "the least normal of float32",
}


def fields_of(path: str) -> frozenset[str]:
    """Return the fields of one of SGLang's classes.

    Args:
        path: The class, as ``module.Class``.
    """
    kind = resolve_name(path)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return frozenset(kind.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return frozenset(field.name for field in dataclasses.fields(kind))
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


def tables() -> str:
    """Return the tables in Markdown, with their headings."""
    parts = []
    for title, rows in (("Sampling parameters", SAMPLING), ("Other fields of a body", BODY)):
        head = ("fields", "value", "one for each text", "effect on a row")
        parts += [f"## {title}\n", "\n".join(table(head, [*map(_cells, rows)])) + "\n"]
    head = ("SGLang's class", "routes", "other names", "fields without a check of ours")
    parts += [
        "## Classes\n",
        "\n".join(table(head, [*map(_owner, CLASSES)])) + "\n",
    ]
    return "\n".join(parts)


def _cells(row: FieldRow) -> tuple[str, ...]:
    value = _said(row.type) + (", of the vocabulary" if row.vocabulary else "")
    return _code(row.names), value, "yes" if row.each else "", row.effect


def _owner(owner: Owner) -> tuple[str, ...]:
    renamed = ", ".join(f"`{name}` ({_code(rows)})" for name, rows in owner.renamed.items())
    name = owner.path.rpartition(".")[2]
    return f"`{name}`", _code(" ".join(owner.routes)), renamed, _code(owner.unchecked)


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split())


def _said(kind: Any) -> str:
    """Return a type in words."""
    if kind in _NAMES:
        return _NAMES[kind]
    if hasattr(kind, "__metadata__"):
        return _bounded(kind.__origin__, kind.__metadata__[0])
    if get_origin(kind) in {list, dict}:
        said = "a list" if get_origin(kind) is list else "an object"
        return f"{said} of {_plural(get_args(kind)[-1])}"
    parts = get_args(kind)
    if parts:
        return " or ".join(f"`{one}`" if isinstance(one, str) else _said(one) for one in parts)
    return "null"


def _bounded(kind: type, meta: msgspec.Meta) -> str:
    if get_origin(kind) is list:
        return f"{_said(kind)}, {meta.max_length} at most"
    if meta.max_length is not None:
        return f"a text of at most {meta.max_length} characters"
    least, most = (_BOUNDS.get(one or 0, f"{one:g}") for one in (meta.ge, meta.le))
    return f"{_NAMES[kind]}, {least} to {most}"


def _plural(kind: Any) -> str:
    said = "anything" if kind is Any else _said(kind)
    return re.sub(r"^a (whole number|number|text)", r"\1s", said)


def unknown() -> dict[str, list[str]]:
    """Return the fields of the SGLang on the path that the table does not know, by class."""
    found: dict[str, list[str]] = {}
    for owner in CLASSES:
        try:
            missing = unknown_to(owner, fields_of(owner.path))
        except (AttributeError, ImportError):
            missing = {"(the class is gone)"}
        if missing:
            found[owner.path] = sorted(missing)
    return found


if __name__ == "__main__":
    before, _, _ = PAGE.read_text().partition("## Sampling parameters")
    PAGE.write_text(before + tables())
