"""``sglang-lp inspect``: explain a payload without running any of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sglang_lp.cli import policy_option, terminal
from sglang_lp.cli.terminal import say
from sglang_lp.errors import PayloadRefused
from sglang_lp.trust import Verifier

if TYPE_CHECKING:
    from sglang_lp.policy import Policy


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
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    policy = policy_option.choose(arguments.policy)
    verifier = Verifier(policy)
    payload = terminal.read(arguments.payload)
    if payload.lstrip().startswith("{"):
        try:
            pickled = terminal.decode(payload)
        except PayloadRefused as error:
            return _print_verdict(policy, str(error), allowed=False)
        for line in terminal.explain(pickled, len(payload)):
            say(line)
    try:
        pin = verifier.pin(payload)  # not lookup, which would unpickle the code
        if pin is not None:
            what = f"pinned as {pin.name!r}: the server runs this code"
            return _print_verdict(policy, what, allowed=True)
        found = verifier.lookup(payload)
    except PayloadRefused as error:
        return _print_verdict(policy, str(error), allowed=False)
    return _print_verdict(policy, f"runs {found.name}", allowed=True)


def _print_verdict(policy: Policy, text: str, *, allowed: bool) -> int:
    say(f"policy   {policy.source}")
    say(f"verdict  {'allowed' if allowed else 'refused'}: {text}")
    return 0 if allowed else 1
