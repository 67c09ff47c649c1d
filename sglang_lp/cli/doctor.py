"""``sglang-lp doctor``: what keeps a guarded server from starting here, or what a server loses."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from sglang_lp.cli import asking, policy_option
from sglang_lp.cli.terminal import say
from sglang_lp.errors import SglangLpError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

__all__ = ["add"]


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "doctor",
        help="check this environment and policy, or a running server",
        description="Check, without starting a server, what a guarded server needs; or ask a "
        "running one, through whatever stands before it, whether it is guarded and which endpoint "
        "loses what. OPENAI_API_KEY is sent if it is set.",
    )
    parser.add_argument(
        "--url", metavar="URL", help="ask the server there, and check nothing of this environment"
    )
    policy_option.add_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.url is not None:
        return _report(asking.checks(arguments.url))
    checks: list[tuple[str, Callable[[], str]]] = [
        ("Python", lambda: sys.version.split()[0]),
        ("SGLang", _check_sglang),
        ("plugin", _check_plugin),
        ("policy", lambda: _check_policy(arguments.policy)),
    ]
    return _report(checks)


def _report(checks: Iterable[tuple[str, Callable[[], str]]]) -> int:
    failed = 0
    for name, check in checks:
        try:
            say(f"ok      {name}: {check()}")
        except asking.Skipped as why:
            say(f"--      {name}: {why}")
        except SglangLpError as error:
            failed += 1
            say(f"FAILED  {name}: {error}")
    return 1 if failed else 0


def _check_sglang() -> str:
    from sglang_lp.server.versions import NEWEST, OLDEST, check_version

    return f"{check_version()} (supported: {OLDEST} to {NEWEST})"


def _check_plugin() -> str:
    found = [
        entry for entry in entry_points(group="sglang.srt.plugins") if entry.name == "sglang_lp"
    ]
    if not found:
        raise SglangLpError(
            "no entry point sglang_lp in the group sglang.srt.plugins; install sglang-lp with pip"
        )
    from sglang_lp.server.serve import check_environment

    check_environment()
    return found[0].value


def _check_policy(named: str | None) -> str:
    policy = policy_option.choose(named)
    return f"{len(policy_option.check(policy).allowed)} processors allowed ({policy.source})"
