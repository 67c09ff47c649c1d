"""The policy that a verb works with."""

from __future__ import annotations

import argparse

from sglang_lp.policy import Policy, Rules
from sglang_lp.server.startup.installation import POLICY_VARIABLE, policy_in_force
from sglang_lp.trust import Verifier

__all__ = ["add_option", "check", "choose", "parse_file"]


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--policy`` to a verb that works with what a server would."""
    parser.add_argument(
        "--policy",
        metavar="FILE",
        type=parse_file,
        help=f"a policy in TOML; without it the one that {POLICY_VARIABLE} names, else the "
        "default: the built-ins, also in the place of SGLang's own processors",
    )


def parse_file(text: str) -> str:
    """Return the name of a policy file; argparse reports the error."""
    if not text:  # an unset variable in a script must not mean the default policy
        raise argparse.ArgumentTypeError("expected the name of a policy file, got an empty text")
    return text


def check(policy: Policy) -> Verifier:
    """Check all of a policy that can be checked without a model.

    Raises:
        PolicyError: A server with it would not start.
    """
    verifier = Verifier(policy)
    with policy.named():
        Rules(policy, verifier.resolve, [one.processor for one in verifier.allowed])
    return verifier


def choose(named: str | None) -> Policy:
    """Return the policy that was named, else the one of the environment, else the default.

    Args:
        named: What was given as ``--policy``.

    Raises:
        PolicyError: There is no such policy.
    """
    return policy_in_force() if named is None else Policy.from_toml(named)
