"""Starting SGLang with the guard in place, for ``sglang-lp serve``."""

from __future__ import annotations

import os
import signal
import sys

from sglang_lp.errors import InstallError
from sglang_lp.server.startup.installation import installed_guard

_PLUGIN = "sglang_lp"


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


def run(sglang_args: list[str]) -> None:
    """Serve until the server ends.

    Args:
        sglang_args: SGLang's command line.

    Raises:
        InstallError: SGLang did not load the guard.
    """
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

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
