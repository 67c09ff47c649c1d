"""``sglang-lp list``: the built-in processors and their parameters."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from sglang_lp.cli._report import say

__all__ = ["add"]

#: SGLang keeps numbers in 32 bits; to say so of each would be noise.
_NO_BOUND = 2**31 - 1


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "list",
        help="print the built-in processors and their parameters",
        description="Print every built-in processor with the custom_params that it takes.",
    )
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> int:
    from sglang_lp import builtins

    for name in builtins.__all__:
        processor = getattr(builtins, name)
        say(name)
        say(f"    {(processor.__doc__ or '').strip().splitlines()[0]}")
        named = msgspec.json.schema(processor.Params)["$defs"]
        schema = named[processor.Params.__name__]
        for key, kind in schema["properties"].items():
            required = key in schema.get("required", ())
            default = "required" if required else f"default {kind.get('default')}"
            say(f"    {key}: {_kind(kind, named)}, {default}")
        say("")
    return 0


def _kind(schema: dict[str, Any], named: dict[str, Any]) -> str:
    """Say a JSON schema in words."""
    if "$ref" in schema:
        return _kind(named[schema["$ref"].rpartition("/")[2]], named)
    if "anyOf" in schema:
        return " or ".join(_kind(option, named) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'], named)}"
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    least, most = schema.get("minimum"), schema.get("maximum")
    bounds = "" if least is None else f" >= {least}"
    if most is not None and most < _NO_BOUND:
        bounds = f" from {least} to {most}"
    return f"{schema.get('type', 'any value')}{bounds}"
