"""SGLang's two doors: shut first, and open only behind a guard that stands.

Requests come in through a ``TokenizerManager`` and are served by a ``Scheduler``. Neither is made
in a process without the whole guard, whatever became of the ``SystemExit`` that said why.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from sglang_lp.server.startup import installation
from sglang_lp.server.startup.installation import refuse

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["end", "shut"]


def shut() -> None:
    """Let no front end and no scheduler begin in this process before its guard stands."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    for door in (Scheduler, TokenizerManager):
        door.__init__ = _guarded(door.__init__)


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
    """End this process and all that it has started.

    Raises:
        SystemExit: Always.
    """
    from sglang.srt.utils import kill_process_tree

    # Python waits for what SGLang has started already, and that waits for requests.
    kill_process_tree(os.getpid(), include_parent=False)
    refuse(why)
