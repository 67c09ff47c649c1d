"""The fields of the page for a processor, made from the schema of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_lp import builtins
from sglang_lp.cli.describe import Parameter, list_parameters, summary


def make_form(listed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a form for a processor that a server lists.

    Args:
        listed: An entry of ``processors`` in the answer of ``GET /sglang_lp``.

    Returns:
        ``name``, ``about``, ``fields``, and an ``example`` of ``custom_params``. Each field has
        ``name``, ``required``, ``about``, ``words`` for its type and default, and ``kind``:

        - ``text``;
        - ``number``, with ``least``, ``most`` and ``whole``;
        - ``choice``, with ``choices``;
        - ``lines``, a list of texts;
        - ``json``, any value; what is no JSON is a text.
    """
    name = listed["name"]
    # A server may have another version: it says which parameters there are.
    known = getattr(builtins, name) if name in builtins.__all__ else None
    described = {} if known is None else {one.name: one for one in list_parameters(known)}
    return {
        "name": name,
        "about": "" if known is None else summary(known),
        "fields": [
            {
                "name": one["name"],
                "required": one["required"],
                **_field(described.get(one["name"])),
            }
            for one in listed["parameters"] or ()
        ],
        "example": {} if known is None else known.example,
    }


def _field(known: Parameter | None) -> dict[str, Any]:
    if known is None:
        return {"kind": "json", "about": "", "words": "a text, or any other value as JSON"}
    default = "" if known.default in {"required", "null"} else f", default {known.default}"
    about = {"about": known.about.replace("`", ""), "words": f"{known.kind}{default}"}
    return {**about, **_kind(known.schema)}


def _kind(schema: Mapping[str, Any]) -> dict[str, Any]:
    match schema:
        case {"enum": choices}:
            return {"kind": "choice", "choices": choices}
        case {"type": "boolean"}:
            return {"kind": "choice", "choices": [True, False]}
        case {"type": "array", "items": {"type": "string"}}:
            return {"kind": "lines"}
        case {"type": "string"}:
            return {"kind": "text"}
        case {"type": "integer" | "number" as name}:
            return {
                "kind": "number",
                "least": schema.get("minimum"),
                "most": schema.get("maximum"),
                "whole": name == "integer",
            }
    return {"kind": "json"}
