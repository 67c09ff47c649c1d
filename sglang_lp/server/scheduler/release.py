"""State goes when its request is over, whoever still holds SGLang's object: a session does.

The next turn of a session is another request, with a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang_lp._engine.rows import detach_row
from sglang_lp.server.scheduler.endings import update_finish_state
from sglang_lp.server.scheduler.report import report

__all__ = ["abandon", "finish"]


def finish(original: Callable[[Any, int], None], req: Any, new_accepted_len: int = 1) -> None:
    """Decide whether a request ends, and report on it: around ``Req.update_finish_state``."""
    update_finish_state(original, req, new_accepted_len)
    if req.custom_logit_processor is not None and req.finished():
        report(req)
        detach_row(req.sampling_params.custom_params)


def abandon(_result: None, _scheduler: Any, req: Any) -> None:
    """Let go of a request that was aborted: after ``Scheduler._release_aborted_request``.

    One that waits gets no finish state. SGLang 0.5.18 has no such function; there the row of a
    request that is aborted while it waits goes with SGLang's object.
    """
    detach_row(req.sampling_params.custom_params)
