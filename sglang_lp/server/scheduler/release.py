"""Release of a request's row when the request is over, even if SGLang keeps its object.

A session keeps the objects of earlier turns. Its next turn is a new request with a new row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang_lp._engine.history.attached import detach_row
from sglang_lp.errors import SglangLpError
from sglang_lp.faults import from_signal
from sglang_lp.server.scheduler.closing import tell, tell_alone
from sglang_lp.server.scheduler.endings import end_request, update_finish_state, withhold_unkept
from sglang_lp.server.scheduler.report import report

logger = logging.getLogger(__name__)


def finish(original: Callable[[Any, int], None], req: Any, new_accepted_len: int = 1) -> None:
    """Decide whether a request ends, and write its report: a hook around SGLang's decision."""
    if req.custom_logit_processor is None:
        tell_alone(original, req, new_accepted_len)
        return withhold_unkept(req)
    sent = max(0, len(req.output_ids) - new_accepted_len)
    try:
        update_finish_state(original, req, new_accepted_len)
        if req.finished():
            try:
                report(req)
                tell(req)
            finally:
                detach_row(req.sampling_params.custom_params)
    except SglangLpError as fault:
        end_request(req, fault, kept=sent)
    except BaseException as error:
        if from_signal(error):
            raise
        logger.exception("sglang-lp: a request could not be ended as it should; it ends here")
        end_request(req, kept=sent)


def abandon(_result: None, _scheduler: Any, req: Any) -> None:
    """Release the row of an aborted request: a hook after SGLang has released the request.

    SGLang updates no finish state of a waiting request, so :func:`finish` does not run for it.
    """
    detach_row(req.sampling_params.custom_params)
