"""Checks at start-up: no process without the guard, and the same policy in all of them.

Some arguments make SGLang start processes that never load plugins; those are refused. Scheduler
processes are started through a function of this module, which checks, in the new process and
before SGLang's own code runs there, that the guard is in place.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from sglang_lp.server.process import installed_guard, refuse
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang_lp.server.guard import Guard
    from sglang_lp.server.pending import PendingResults

logger = logging.getLogger(__name__)

__all__ = ["check_launch", "make_guard_schedulers", "make_learn"]


def check_launch(cls: Any, server_args: Any, *_args: Any, **_kwargs: Any) -> None:
    """Refuse to start where SGLang has processes that never load plugins."""
    workers = getattr(server_args, "tokenizer_worker_num", 1)
    if workers > 1:
        refuse(f"--tokenizer-worker-num {workers}: SGLang loads no plugin in tokenizer workers")
    if getattr(server_args, "use_ray", False) or "ray" in cls.__module__.split("."):
        refuse("Ray: SGLang loads no plugin in its actors")


def make_guard_schedulers(guard: Guard) -> Any:
    """Return the hook around ``Engine._launch_scheduler_processes``."""

    def launch(
        original: Any,
        cls: Any,
        server_args: Any,
        port_args: Any,
        run_scheduler_process_func: Callable[..., None],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        run = functools.partial(run_guarded, run_scheduler_process_func, guard.fingerprint)
        return original(cls, server_args, port_args, run, *args, **kwargs)

    return launch


def run_guarded(run: Callable[..., None], fingerprint: str, *args: Any, **kwargs: Any) -> None:
    """Run a scheduler process, provided that the guard is in place in it.

    Args:
        run: SGLang's function.
        fingerprint: Of the policy in the parent process.
        *args: For ``run``.
        **kwargs: For ``run``.

    Raises:
        SystemExit: The guard is missing here, or has another policy.
    """
    from sglang.srt.plugins import load_plugins

    load_plugins()
    guard = installed_guard()
    if guard is None:
        refuse("SGLang did not load the plugin in a scheduler process")
    elif guard.fingerprint != fingerprint:
        refuse("a scheduler process has another policy than the process that started it")
    run(*args, **kwargs)


def make_learn(guard: Guard, pending: PendingResults) -> Any:
    """Return the hook after ``Scheduler.get_init_info``: what is served becomes known."""

    def learn(_info: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
        guard.learn(Gate.SCHEDULER, scheduler)
        pending.scheduler = scheduler

    return learn
