"""Fail closed: no ``TokenizerManager`` or ``Scheduler`` until every hook is live.

A ``TokenizerManager`` takes requests and a ``Scheduler`` serves them. A process without the whole
guard can make neither, even if the program caught the ``SystemExit`` that named the fault.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from sglang_lp.server.startup import installation
from sglang_lp.server.startup.installation import refuse

if TYPE_CHECKING:
    from collections.abc import Callable


def shut() -> None:
    """Keep a front end or scheduler from starting in this process before its guard is live."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    for cls in (Scheduler, TokenizerManager):
        cls.__init__ = _guarded(cls.__init__)


def _guarded(begin: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(begin)
    def guarded(*args: Any, **kwargs: Any) -> None:
        if installation.installed_guard() is None:
            end("the guard is not in place in this process")
        if not installation.schedulers_are_guarded:
            end(
                "this server's schedulers were not started by SGLang's own Engine, but by Ray, SMG "
                "or a program of its own"
            )
        begin(*args, **kwargs)

    return guarded


def end(why: str) -> None:
    """End this process and every process that it has started.

    Raises:
        SystemExit: Always.
    """
    from sglang.srt.utils import kill_process_tree

    # Python would wait for processes that SGLang has started, and they wait for requests.
    kill_process_tree(os.getpid(), include_parent=False)
    refuse(why)
