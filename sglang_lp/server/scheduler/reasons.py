"""SGLang's finish reasons for ends that sglang-lp decides, and ends by a finish reason only.

:func:`fail` and :func:`fail_finished` are the last resort: they use nothing that may have failed
before. An error in them ends the scheduler, like every error in SGLang's own code.
"""

from __future__ import annotations

import logging
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sglang_lp.edits import LENGTH
from sglang_lp.errors import Contradiction, ProcessorFault, RequestError, SglangLpError
from sglang_lp.server.gate.coded import Coded
from sglang_lp.trust.audit import safe_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sglang_lp.edits import End

logger = logging.getLogger(__name__)

#: Attribute of SGLang's finish reason: what failed, ``"processor"`` or ``"toolkit"``; ``None`` for
#: an error of the client.
FAULT = "sglang_lp_fault"

#: Attribute of SGLang's finish reason: the class that failed, as in ``ProcessorFault.processor``.
CULPRIT = "sglang_lp_culprit"

#: Attribute of SGLang's finish reason: whether the requested edits left no token.
CONTRADICTS = "sglang_lp_contradicts"

#: Attribute of SGLang's finish reason: most output tokens that the client gets.
_KEPT = "sglang_lp_kept"

_INTERNAL = "internal error of sglang-lp: the request's processors did not run to its end"


def abort(error: SglangLpError) -> Any:
    """Return SGLang's finish reason for an error."""
    culprit = error.processor if isinstance(error, ProcessorFault) else None
    fault: str | None = "toolkit" if culprit is None else "processor"
    if isinstance(error, RequestError):
        fault = None
    reason = _abort(Coded(str(error), error.code, error.param), fault)
    setattr(reason, CULPRIT, culprit)
    setattr(reason, CONTRADICTS, isinstance(error, Contradiction))
    return reason


def add(reason: Any, entries: Mapping[str, Any]) -> None:
    """Add entries to the JSON of SGLang's finish reason."""
    said = {**reason.to_json(), **entries}
    reason.to_json = said.copy  # SGLang calls only dict.copy, no plugin code


def finish_reason(end: End, length: int) -> Any:
    """Return SGLang's finish reason for an end that a processor decided.

    Args:
        end: The processor's argument of ``edits.finish``.
        length: Length of the output, including its last token.
    """
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

    return (
        _truncation()(end.reason, length) if end.kind == LENGTH else FINISH_MATCHED_STR(end.reason)
    )


@cache
def _truncation() -> type:
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH

    class Truncation(FINISH_LENGTH):  # type: ignore[misc]
        """SGLang's end at ``max_new_tokens``, with the processor's reason as an extra field."""

        def __init__(self, reason: str, length: int) -> None:
            super().__init__(length)
            self.reason = reason

        def to_json(self) -> dict[str, Any]:
            return {**super().to_json(), "reason": self.reason}

    return Truncation


def is_error(reason: Any) -> bool:
    """Tell whether a finish reason is an error that sglang-lp made."""
    return hasattr(reason, FAULT)


def log_end(req: Any, message: str) -> None:
    """Log that a request ends with an error.

    Args:
        req: SGLang's request.
        message: For the client.
    """
    logger.warning("request %s ended: %s", safe_id(getattr(req, "rid", None)), message)


def withhold_unkept(req: Any) -> None:
    """Withhold the tokens of a finished request that :func:`fail` did not keep."""
    kept = getattr(req.finished_reason, _KEPT, None)
    if kept is not None:
        withhold(req, kept)


#: Attributes that hold the masks still to be sent; SGLang 0.5.20 has them and their logprobs apart.
_MASKS = ("sampling_mask_rows", "output_token_sampling_mask", "output_token_sampling_logprobs")


class _NoMasks(list[Any]):
    """Stands in for the sampling masks of a request that are still to be sent.

    The request still counts as asking for masks: SGLang's scheduler crashes if the number of such
    requests differs from the number in the pending result.
    """

    def __init__(self, masks: Any) -> None:
        super().__init__()
        self._none = None if isinstance(masks, list) else type(masks)().take()

    def append(self, *_masks: Any) -> None:
        """Drop the masks of a token."""

    def take(self) -> Any:
        """Return no masks, as SGLang sends them."""
        return self._none


def withhold(req: Any, kept: int) -> None:
    """Withhold the last tokens of a finished request, with their masks and logprobs.

    Args:
        req: SGLang's request.
        kept: Most output tokens that the client gets.
    """
    visible = len(req.output_ids) if req.finished_len is None else req.finished_len
    if kept >= visible:
        return
    req.finished_len = kept
    for name in _MASKS:  # SGLang would send those of all tokens
        masks = getattr(req, name, None)
        if masks is not None and not isinstance(masks, _NoMasks):
            setattr(req, name, _NoMasks(masks))
    if kept == 0:
        req.return_logprob = False  # SGLang always sends the logprob of the first token


def fail(req: Any, error: SglangLpError | str = _INTERNAL) -> None:
    """End a request with an error when SGLang processes its next, or its pending, result.

    The client gets only the tokens that are already processed.

    Args:
        req: SGLang's request, or a proxy of it.
        error: The error; a text is the message of a failure of sglang-lp itself.
    """
    try:
        reason = _reason(error)
        setattr(reason, _KEPT, len(getattr(req, "output_ids", ())))
        req.to_finish = reason
    except ReferenceError:  # SGLang has freed the request
        return


def fail_finished(req: Any, kept: int, error: SglangLpError | str = _INTERNAL) -> None:
    """Turn the end of a finished request into an error, unless it is an error already.

    Args:
        req: SGLang's request.
        kept: Most output tokens that the client gets.
        error: As for :func:`fail`.
    """
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    if not isinstance(req.finished_reason, FINISH_ABORT):
        req.finished_reason = _reason(error)
    withhold(req, kept)


def _reason(error: SglangLpError | str) -> Any:
    if isinstance(error, str):
        return _abort(Coded(error, SglangLpError.code, None))
    return abort(error)


def _abort(coded: Coded, fault: str | None = "toolkit") -> Any:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    status = HTTPStatus.BAD_REQUEST if fault is None else HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "BadRequestError" if fault is None else "InternalServerError"
    reason = FINISH_ABORT(coded.message, status, kind)
    setattr(reason, FAULT, fault)
    add(reason, coded.entries)
    return reason
