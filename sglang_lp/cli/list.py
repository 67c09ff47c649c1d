"""``sglang-lp list``: the built-in processors and their parameters."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from sglang_lp.cli._report import say

__all__ = ["add"]


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
        schema = msgspec.json.schema(processor.Params)["$defs"][processor.Params.__name__]
        for key, kind in schema["properties"].items():
            required = key in schema.get("required", ())
            default = "required" if required else f"default {kind.get('default')}"
            say(f"    {key}: {_kind(kind)}, {default}")
        say("")
    return 0


def _kind(schema: dict[str, Any]) -> str:
    """Say a JSON schema in words."""
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    least = f" >= {schema['minimum']}" if "minimum" in schema else ""
    return f"{schema.get('type', 'any value')}{least}"
