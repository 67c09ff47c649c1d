"""The option ``--policy``, and the policy that it chooses."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sglang_lp.policy import Policy, Rules
from sglang_lp.server.startup.installation import POLICY_VARIABLE, policy_in_force
from sglang_lp.trust import Verifier

if TYPE_CHECKING:
    from sglang_lp.served_model import ServedModel


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--policy`` to a verb that uses the policy of a server."""
    parser.add_argument(
        "--policy",
        metavar="FILE",
        type=parse_file,
        help=f"policy file in TOML. Default: the file that {POLICY_VARIABLE} names; without that, "
        "the built-ins are allowed, and replace SGLang's own processors",
    )


def parse_file(text: str) -> str:
    """Return the name of a policy file; argparse reports an empty one."""
    if not text:  # an unset variable in a script must not mean the default policy
        raise argparse.ArgumentTypeError("expected the name of a policy file, got an empty text")
    return text


def check(policy: Policy, served: ServedModel | None = None) -> Verifier:
    """Check a policy as a server does at start-up.

    Args:
        policy: The policy.
        served: The model; without it the check leaves out what depends on the model.

    Raises:
        PolicyError: A server with it would not start.
    """
    verifier = Verifier(policy)
    with policy.named():
        rules = Rules(policy, verifier.resolve, [one.processor for one in verifier.allowed])
        if served is not None:
            rules.fit(served)
    return verifier


def choose(named: str | None) -> Policy:
    """Return the policy of ``--policy``, else of the environment variable, else the default.

    Args:
        named: The file given as ``--policy``, if any.

    Raises:
        PolicyError: The file cannot be read, or is wrong.
    """
    return policy_in_force() if named is None else Policy.from_toml(named)
