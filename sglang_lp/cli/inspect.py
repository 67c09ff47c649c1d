"""``sglang-lp inspect``: explain a payload without running any of it."""

from __future__ import annotations

import argparse
from typing import Any

from sglang_lp.cli import policy_option, terminal
from sglang_lp.cli.terminal import say, say_json
from sglang_lp.errors import PayloadRefused
from sglang_lp.trust import Verifier


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "inspect",
        help="explain a payload without running any of it",
        description="Explain a payload, and say whether a policy allows it. None of it is run. "
        "Exit code 0 if the policy allows it, 1 if it refuses it.",
    )
    parser.add_argument(
        "payload", nargs="?", default="-", help="the payload's text, @FILE, or - for standard input"
    )
    policy_option.add_option(parser)
    parser.add_argument("--json", action="store_true", help="print only the verdict, as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    policy = policy_option.choose(arguments.policy)
    verifier = Verifier(policy)
    payload = terminal.read(arguments.payload)
    if payload.lstrip().startswith("{") and not arguments.json:
        try:
            pickled = terminal.decode(payload)
        except PayloadRefused:
            pickled = b""
        for line in terminal.explain(pickled, len(payload)) if pickled else ():
            say(line)
    allowed = True
    try:
        pin = verifier.pin(payload)  # not lookup, which would unpickle the code
        if pin is not None:
            text = f"pinned as {pin.name!r}: the server runs this code"
        else:
            text = f"runs {verifier.lookup(payload).name}"
    except PayloadRefused as error:
        allowed, text = False, str(error)
    if arguments.json:
        say_json({"policy": policy.source, "allowed": allowed, "verdict": text})
    else:
        say(f"policy   {policy.source}")
        say(f"verdict  {'allowed' if allowed else 'refused'}: {text}")
    return 0 if allowed else 1
