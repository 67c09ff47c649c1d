"""``sglang-lp serve``: start SGLang, provided that the guard is in place everywhere."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sglang_lp.cli import policy_option
from sglang_lp.errors import InstallError, UsageError
from sglang_lp.server.process import POLICY_VARIABLE
from sglang_lp.trust import Verifier

__all__ = ["add", "check_environment"]

_PLUGIN = "sglang_lp"
_FLAG = "--enable-custom-logit-processor"


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "serve",
        usage="%(prog)s [-h] [--policy FILE] -- ARGUMENTS...",
        help="start a guarded SGLang server",
        description=(
            "Start an SGLang server that runs only the custom logit processors that its policy "
            f"allows. Everything after -- goes to SGLang; {_FLAG} is added."
        ),
    )
    policy_option.add_option(parser)
    parser.add_argument(
        "sglang_args",
        nargs=argparse.REMAINDER,
        metavar="-- ARGUMENTS",
        help="SGLang's own arguments, such as --model-path",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    sglang_args = arguments.sglang_args
    if sglang_args[:1] == ["--"]:
        sglang_args = sglang_args[1:]
    if not sglang_args:
        raise UsageError(
            "expected SGLang's arguments after --, for example: "
            "sglang-lp serve -- --model-path Qwen/Qwen3-8B"
        )
    Verifier(policy_option.choose(arguments.policy))  # an error now, not after a minute
    if arguments.policy is not None:
        os.environ[POLICY_VARIABLE] = str(Path(arguments.policy).resolve())
    if _FLAG not in sglang_args:
        sglang_args = [*sglang_args, _FLAG]
    check_environment()
    _launch(sglang_args)
    return 0


def refuse_reload() -> None:
    """Answer SIGHUP with a message, because a policy is read at start-up only.

    The signal's default action would end the server. A server that ignores the signal, because it
    was started with ``nohup``, still does.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _answer_reload)


def _answer_reload(_number: int, _frame: object) -> None:
    # Not the log: a handler may run while it is being written.
    os.write(
        2,
        b"sglang-lp: SIGHUP: the policy is not reloaded; restart the server to change what it "
        b"allows\n",
    )


def check_environment() -> None:
    """Refuse an environment in which SGLang skips the plugin, which cannot detect that itself."""
    chosen = os.environ.get("SGLANG_PLUGINS", "")
    if chosen and _PLUGIN not in {name.strip() for name in chosen.split(",")}:
        raise InstallError(
            f"SGLANG_PLUGINS={chosen!r} leaves the guard out; add {_PLUGIN} to it or unset it"
        )


def _launch(sglang_args: list[str]) -> None:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    from sglang_lp.server.process import installed_guard

    load_plugins()
    if installed_guard() is None:
        raise InstallError(
            "SGLang did not load the guard: is sglang-lp installed in this environment, with its "
            "entry point, and does SGLANG_PLATFORM leave it out?"
        )
    refuse_reload()
    server_args = prepare_server_args(sglang_args)
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
        sys.stdout.flush()
