"""The report of an answer on its way to the client: an answer without one is an error.

What edits an answer in the scheduler says so when it is done. Where that is missing, nobody knows
what the answer is.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import orjson

from sglang_lp.params import RAW
from sglang_lp.wire.names import REPORT

__all__ = ["expect", "take_report"]

logger = logging.getLogger(__name__)

#: Attribute of SGLang's request in this process: whether a processor runs on it.
_RUNS = "sglang_lp_runs"
_UNREPORTED = (
    "internal error of sglang-lp: no report came with this answer, so its processors may not have "
    "run; the scheduler's log says why"
)


def expect(obj: Any) -> None:
    """Expect a report with the answer to a request that was admitted with a processor.

    Args:
        obj: SGLang's ``GenerateReqInput``; copies of it are expected to have one, too.
    """
    setattr(obj, _RUNS, True)


def take_report(manager: Any, out: dict[str, Any], state: Any, *_args: Any, **_kwargs: Any) -> None:
    """Take the report out of a finished answer's reason, and turn one without into an error.

    It runs for each answer by itself, before SGLang looks for an error. What is raised here ends
    that request.

    The answer of a prefill server has none: the decode server's goes to the client. Neither has
    one without tokens: SGLang asks for such a one before it makes copies of a prompt.
    """
    meta_info = out["meta_info"]
    reason = meta_info["finish_reason"]
    report, raw = reason.pop(REPORT, None), reason.pop(RAW, None)
    if report is not None:
        meta_info[REPORT] = orjson.loads(report)
        if raw is not None:
            meta_info[REPORT][RAW] = orjson.loads(raw)
        return
    if not getattr(state.obj, _RUNS, False) or not meta_info.get("completion_tokens", 1):
        return
    if reason["type"] == "abort" or manager.server_args.disaggregation_mode == "prefill":
        return
    logger.error(_UNREPORTED)
    meta_info["finish_reason"] = {
        "type": "abort",
        "message": _UNREPORTED,
        "status_code": HTTPStatus.INTERNAL_SERVER_ERROR,
        "err_type": "InternalServerError",
    }
