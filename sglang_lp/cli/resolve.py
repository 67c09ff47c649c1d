"""``sglang-lp resolve``: a model's thinking delimiters as parameters."""

from __future__ import annotations

import argparse
from typing import Any

import orjson

from sglang_lp.cli.terminal import progress, say, say_json


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "resolve",
        help="print the thinking delimiters of a model's tokenizer",
        description="Find the thinking delimiters in a tokenizer.json, and print the class for "
        "this model and the custom_params that hold the ids.",
    )
    parser.add_argument("directory", metavar="DIR", help="a model's directory")
    # Named as in attach(), whose error messages are shown here.
    parser.add_argument(
        "--thinking-start", help="text that opens a thinking block, if it cannot be found"
    )
    parser.add_argument("--thinking-end", help="text that closes a thinking block")
    parser.add_argument("--closing", help="message that is forced before a block is closed")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from sglang_lp.builtins.thinking.delimiters import resolve
    from sglang_lp.client import attach
    from sglang_lp.client.models import load_model

    with progress("reading the tokenizer") as step:
        tokenizer = load_model(arguments.directory).tokenizer
        step("looking for the delimiters")
        names = ("thinking_start", "thinking_end", "closing")
        given = {name: text for name in names if (text := getattr(arguments, name)) is not None}
        params = attach("ThinkingBudgetLogitProcessor", **given).resolve(tokenizer).custom_params
        found = resolve(tokenizer, arguments.thinking_start, arguments.thinking_end)
    family = found.family
    if arguments.json:
        say_json(
            {
                "thinking_start": found.start,
                "thinking_end": found.end,
                "models": family.models if family else None,
                "processor": family.processor if family else "ThinkingBudgetLogitProcessor",
                "custom_params": params,
            }
        )
        return 0
    say(f"delimiters  {found.start!a} {found.end!a}")
    say(f"models      {family.models if family else 'no known family'}")
    say(f"class       {family.processor if family else 'ThinkingBudgetLogitProcessor'}")
    say(f"params      {orjson.dumps(params).decode()}")
    return 0
