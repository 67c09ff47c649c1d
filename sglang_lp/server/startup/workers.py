"""Tokenizer workers (``--tokenizer-worker-num``): SGLang's HTTP app, behind a guard in each.

SGLang starts them as processes that import the app from a path, which an environment variable
names, and load no plugin. So the path names this module, which has :data:`app` once the guard is
live.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from sglang_lp.server.startup import installation
from sglang_lp.server.startup.fail_closed import end
from sglang_lp.server.startup.front_app import extend
from sglang_lp.server.startup.installation import installed_guard, refuse

#: SGLang's variable for the path of the app, and the fingerprint of the parent's policy.
_PATH = "SGLANG_HTTP_SERVER_APP_PATH"
_FINGERPRINT = "SGLANG_LP_FINGERPRINT"
_HERE = f"{__name__}:app"


def can_be_guarded() -> bool:
    """Tell whether this SGLang lets the path of the app be chosen: from 0.5.23 on."""
    from sglang.srt.environ import envs

    return hasattr(envs, "SGLANG_HTTP_SERVER_APP_PATH")


def lead_to_guard() -> None:
    """Have the workers that this process will start import their app from here."""
    from sglang.srt.environ import envs

    path = envs.SGLANG_HTTP_SERVER_APP_PATH.get()
    if path not in (_HERE, "sglang.srt.entrypoints.http_server:app"):
        refuse(
            f"{_PATH} names another app, {path}, which would load no plugin in tokenizer workers; "
            "unset it, or leave --tokenizer-worker-num at 1"
        )
    guard = installed_guard()
    if guard is None:
        refuse("the guard is not in place in the process that starts tokenizer workers")
    os.environ[_PATH] = _HERE
    os.environ[_FINGERPRINT] = guard.fingerprint


def refuse_to_be_joined(*_args: Any, **_kwargs: Any) -> None:
    """End an ``Engine`` with several tokenizer workers, before it publishes where to join it.

    Other processes of its program would join it, and these load no plugin. A server is told apart
    by its app: its workers are processes that import this module.
    """
    server = sys.modules.get("sglang.srt.entrypoints.http_server")
    if server is not None and getattr(server.app, "is_single_tokenizer_mode", True) is False:
        return
    end(
        "an Engine with tokenizer_worker_num above 1: SGLang loads no plugin in the processes that "
        "join it; set it to 1, or start a server (sglang serve)"
    )


def __getattr__(name: str) -> Any:
    """Return SGLang's app as ``app``, if this worker is guarded like its parent."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sglang.srt.plugins import load_plugins

    load_plugins()
    guard = installed_guard()
    if guard is None:
        refuse("SGLang did not load the plugin in a tokenizer worker")
    if guard.fingerprint != os.environ.get(_FINGERPRINT):
        refuse("a tokenizer worker has another policy than the process that started it")
    installation.schedulers_are_guarded = True  # the parent has checked
    from sglang.srt.entrypoints.http_server import app

    extend(app, guard)
    return app
