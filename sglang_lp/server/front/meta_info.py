"""The report of each edited answer, moved into its ``meta_info``; a missing report is an error.

The scheduler reports the edits of an answer when it finishes. Without the report, it is unknown
whether the processor ran on the answer.
"""

from __future__ import annotations

import logging
from typing import Any

import orjson

from sglang_lp.errors import NotRun
from sglang_lp.params import RAW, WHOLE
from sglang_lp.server.front.scoring import probabilities_of
from sglang_lp.server.gate.coded import Coded
from sglang_lp.wire.names import REPORT

logger = logging.getLogger(__name__)

#: Attribute of SGLang's request in this process: whether a processor runs on it.
_RUNS = "sglang_lp_runs"
_UNREPORTED = Coded(
    "internal error of sglang-lp: no report came with this answer, so its processors may not have "
    "run; the scheduler's log says why",
    NotRun.code,
)


def expect(obj: Any) -> None:
    """Expect a report with the answer to a request that was admitted with a processor.

    Args:
        obj: SGLang's ``GenerateReqInput``. Its copies inherit the expectation.
    """
    setattr(obj, _RUNS, True)


def take_report(manager: Any, out: dict[str, Any], state: Any, *_args: Any, **_kwargs: Any) -> None:
    """Move the report from a finished answer's reason to its ``meta_info``.

    An answer without an expected report becomes an error. Exceptions:

    - The answer of a prefill server: the client gets the decode server's answer.
    - An answer without tokens: SGLang requests it before it makes copies of a prompt.

    It runs for each answer separately, before SGLang looks for an error. An exception raised here
    ends only that request.
    """
    meta_info = out["meta_info"]
    for beam in meta_info.get("beam_results", ())[1:]:
        _move(beam["meta_info"])
    if _move(meta_info):
        scored = probabilities_of(getattr(state, "obj", None))
        if scored is not None:
            meta_info[REPORT]["choices"] = scored
        for beam in meta_info.get("beam_results", ())[:1]:  # the answer itself is the best beam
            beam["meta_info"][REPORT] = meta_info[REPORT]
        return
    reason = meta_info["finish_reason"]
    if not getattr(state.obj, _RUNS, False) or not meta_info.get("completion_tokens", 1):
        return
    if reason["type"] == "abort" or manager.server_args.disaggregation_mode == "prefill":
        return
    logger.error(_UNREPORTED.message)
    meta_info["finish_reason"] = {
        "type": "abort",
        "message": _UNREPORTED.message,
        "status_code": _UNREPORTED.status,
        "err_type": _UNREPORTED.kind,
        **_UNREPORTED.entries,
    }


def _move(meta_info: dict[str, Any]) -> bool:
    """Move the report of one answer out of its finish reason; return whether there is one."""
    reason = meta_info["finish_reason"]
    report, raw, whole = (reason.pop(name, None) for name in (REPORT, RAW, WHOLE))
    if report is None:
        return False
    meta_info[REPORT] = orjson.loads(report)
    if raw is not None:
        meta_info[REPORT][RAW] = orjson.loads(raw)
    if whole is not None:
        meta_info[REPORT][WHOLE] = orjson.loads(whole)
    return True
