"""The report of an answer on its way to the client: an answer without one is an error.

What edits an answer in the scheduler says so when it is done. Where that is missing, nobody knows
what the answer is.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from sglang_lp.client.answers import KEY

__all__ = ["expect", "refuse_unreported", "unwrap"]

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


def unwrap(
    _result: None,
    _manager: Any,
    meta_info: dict[str, Any],
    state: Any,
    customized_info: dict[str, list[Any]],
    index: int,
    *_args: Any,
    **_kwargs: Any,
) -> None:
    """Keep the report itself: a hook after SGLang put an answer's ``customized_info`` there.

    SGLang makes a list with an entry for each token of it, and one of ``None`` for the other
    requests of the same message. The loop that runs this serves everybody, so nothing is raised.
    """
    if KEY not in customized_info:
        return
    try:
        meta_info.pop(KEY, None)
        state.customized_info_accumulated.pop(KEY, None)
        values = customized_info[KEY][index]
        if values and values[-1] is not None:
            meta_info[KEY] = values[-1]
    except Exception:
        logger.exception("sglang-lp: a report was lost; its answer leaves as an error")


def refuse_unreported(manager: Any, out: dict[str, Any], state: Any, *_args: Any) -> None:
    """Turn a finished answer without a report into an error, before SGLang looks for one.

    The answer of a prefill server has none: the decode server's goes to the client. Neither has
    one without tokens: SGLang asks for such a one before it makes copies of a prompt.
    """
    if not getattr(state.obj, _RUNS, False) or KEY in out["meta_info"]:
        return
    if not out["meta_info"].get("completion_tokens", 1):
        return
    reason = out["meta_info"]["finish_reason"]
    if reason["type"] == "abort" or manager.server_args.disaggregation_mode == "prefill":
        return
    logger.error(_UNREPORTED)
    out["meta_info"]["finish_reason"] = {
        "type": "abort",
        "message": _UNREPORTED,
        "status_code": HTTPStatus.INTERNAL_SERVER_ERROR,
        "err_type": "InternalServerError",
    }
