"""``sglang-lp list``: the built-in processors and their parameters."""

from __future__ import annotations

import argparse
from typing import Any

import orjson

from sglang_lp.cli.terminal import say


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "list",
        help="print the built-in processors and their parameters",
        description="Print every built-in processor with its custom_params and an example.",
    )
    parser.add_argument(
        "--markdown",
        action="store_true",
        help="as a page with requests to copy: docs/processors.md",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from sglang_lp import builtins
    from sglang_lp.cli.describe import find_base, list_parameters, summary, write_page

    if arguments.markdown:
        say(write_page().rstrip())
        return 0
    for name in sorted(builtins.__all__, key=str.lower):
        processor = getattr(builtins, name)
        say(name)
        say(f"    {summary(processor)}")
        shared = find_base(processor)
        if shared is None:
            for one in list_parameters(processor):
                default = one.default if one.default == "required" else f"default {one.default}"
                say(f"    {one.name}: {one.kind}, {default}")
        else:
            say(f"    takes what {shared.__name__} takes")
        say(f"    example: {orjson.dumps(processor.example).decode()}")
        say("")
    return 0
