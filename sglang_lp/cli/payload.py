"""``sglang-lp payload``: print the payload of a class."""

from __future__ import annotations

import argparse
from typing import Any

from sglang_lp import wire
from sglang_lp.cli.terminal import say
from sglang_lp.errors import UsageError, shown
from sglang_lp.importing import parse_entry


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "payload",
        help="print the custom_logit_processor text of a class",
        description="Print the text that to_str() returns for a class, without importing it.",
    )
    parser.add_argument("name", metavar="NAME", help="a built-in, or package.module:Class")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if ":" in arguments.name:
        say(wire.payload_for(*parse_entry(arguments.name, "payload")))
        return 0
    from sglang_lp import builtins
    from sglang_lp.client.attachment import suggest_builtin

    if arguments.name not in builtins.__all__:
        raise UsageError(
            f"NAME: expected a built-in or package.module:Class, got {shown(arguments.name)}; "
            f"{suggest_builtin(arguments.name, 'see sglang-lp list')}"
        )
    say(wire.payload_for(builtins.__name__, arguments.name))
    return 0
