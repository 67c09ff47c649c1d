"""Requests stay in SGLang's waiting queue until their prompts are read.

What their processors read of prompts between two steps is bounded, so a request may be passed over
for a few steps, as SGLang passes over one whose cache is still on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.rows import rows_of

if TYPE_CHECKING:
    from sglang_lp._engine.arrivals import Arrivals
    from sglang_lp.server.guard import Guard

__all__ = ["make_hold", "make_hold_prebuilt"]


def make_hold(guard: Guard, arrivals: Arrivals) -> Any:
    """Return the hook around ``Scheduler.get_new_batch_prefill``."""

    def hold(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        waiting = _read(scheduler.waiting_queue, arrivals, guard.vocab_size)
        return _without(waiting, original, scheduler, *args, **kwargs)

    return hold


def make_hold_prebuilt(arrivals: Arrivals, resume: Callable[[Any], None]) -> Any:
    """Return the hook around ``Scheduler.get_new_prebuilt_batch`` of a decode server.

    Args:
        arrivals: Of the scheduler.
        resume: Takes each request that could begin.
    """

    def hold(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        # Their first step was elsewhere, so nothing is asked before it.
        waiting = _read(scheduler.waiting_queue, arrivals, None)
        for req in scheduler.waiting_queue:
            if id(req) not in waiting:
                resume(req)
        return _without(waiting, original, scheduler, *args, **kwargs)

    return hold


def _read(queue: list[Any], arrivals: Arrivals, vocab_size: int | None) -> set[int]:
    """Read prompts of those that wait; return who has to wait for longer, by ``id``."""
    rows = rows_of([_params(req) for req in queue]) if arrivals.wait else []
    return {id(queue[index]) for index in arrivals.read(rows, vocab_size)}


def _params(req: Any) -> Any:
    # A request for an embedding has none.
    return getattr(req.sampling_params, "custom_params", None)


def _without(
    waiting: set[int], original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any
) -> Any:
    """Let SGLang form a batch of the others, and give these back their places."""
    if not waiting:
        return original(scheduler, *args, **kwargs)
    queue = scheduler.waiting_queue
    scheduler.waiting_queue = [req for req in queue if id(req) not in waiting]
    try:
        return original(scheduler, *args, **kwargs)
    finally:
        left = {id(req): req for req in scheduler.waiting_queue}
        keep = waiting | left.keys()
        kept = [req for req in queue if id(req) in keep]
        before = set(map(id, queue))  # SGLang puts those that it preempts at the end
        scheduler.waiting_queue = [
            *kept,
            *(req for place, req in left.items() if place not in before),
        ]
