"""SGLang's finish reasons for what ends a request here, and how one ends by them alone.

That is the last resort: it needs nothing that can have failed before. If it raises itself, that
ends the scheduler, as every error in SGLang's own code does.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from sglang_lp.edits import LENGTH
from sglang_lp.errors import RequestError, SglangLpError

__all__ = ["PROCESSOR_FAILED", "abort", "fail", "fail_finished", "stop"]

#: Attribute of SGLang's finish reason: whether a fault, ours or a processor's, is the reason.
PROCESSOR_FAILED = "sglang_lp_processor_failed"

_INTERNAL = "internal error of sglang-lp: the request's processors did not run to its end"


def abort(error: SglangLpError) -> Any:
    """Return SGLang's finish reason for an error."""
    blame_client = isinstance(error, RequestError)
    return _abort(str(error), blame_client=blame_client)


def stop(reason: str, length: int) -> Any:
    """Return SGLang's finish reason for an end that a processor decided.

    Args:
        reason: What it gave to ``edits.finish``.
        length: Of the output, with the token that ends it.
    """
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH, FINISH_MATCHED_STR

    return FINISH_LENGTH(length) if reason == LENGTH else FINISH_MATCHED_STR(reason)


def fail(req: Any, message: str = _INTERNAL) -> None:
    """End a request with HTTP 500 when SGLang processes its next result, or the one that waits.

    Args:
        req: SGLang's request, or a proxy of it.
        message: For the client.
    """
    try:
        req.to_finish = _abort(message)
    except ReferenceError:  # the request itself is gone, and nobody waits for it
        return


def fail_finished(req: Any, message: str = _INTERNAL) -> None:
    """Turn the end of a request that SGLang holds for over into an error, if it is none.

    Args:
        req: SGLang's request.
        message: For the client.
    """
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    if not isinstance(req.finished_reason, FINISH_ABORT):
        req.finished_reason = _abort(message)


def _abort(message: str, *, blame_client: bool = False) -> Any:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    status = HTTPStatus.BAD_REQUEST if blame_client else HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "BadRequestError" if blame_client else "InternalServerError"
    reason = FINISH_ABORT(message, status, kind)
    setattr(reason, PROCESSOR_FAILED, not blame_client)
    return reason
