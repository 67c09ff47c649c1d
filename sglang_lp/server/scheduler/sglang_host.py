"""SGLang's request as the engine sees it: its history, and how it is ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.host import Host, Seen
from sglang_lp.errors import RequestError, SglangLpError
from sglang_lp.server.scheduler.endings import end_request
from sglang_lp.server.versions import committed_length

if TYPE_CHECKING:
    from sglang_lp.server.scheduler.pending import PendingResults

__all__ = ["PROCESSOR_FAILED", "SglangHost", "StockHost", "stop"]

logger = logging.getLogger(__name__)

#: Attribute of SGLang's finish reason: whether a processor's fault is the reason.
PROCESSOR_FAILED = "sglang_lp_processor_failed"


class StockHost(Host):
    """A request of a server without the plugin, whose newest token may be missing.

    Args:
        req: SGLang's request, or a proxy of it.
        may_lag: As for ``Host``; found out if ``None``.
    """

    __slots__ = ()

    def __init__(self, req: Any, *, may_lag: bool | None = None) -> None:
        if may_lag is None:
            # A request without SGLang's bookkeeping is a test's, and holds its whole history.
            may_lag = hasattr(req, "kv") or hasattr(req, "kv_committed_len")
        super().__init__(req, may_lag=may_lag)
        sampling = getattr(req, "sampling_params", None)
        self.restricted = bool(
            getattr(sampling, "min_new_tokens", 0) or getattr(sampling, "logit_bias", None)
        )
        limit = getattr(sampling, "max_new_tokens", None)
        if limit is not None:
            self.limit = limit

    def look(self, *, tokens: bool) -> Seen:  # noqa: ARG002 - they are there, or cannot be had
        req = self.request
        output_ids, prompt_ids = req.output_ids, req.origin_input_ids
        seen = len(output_ids)
        try:
            committed, over = req.kv.kv_committed_len, req.finished_reason
        except AttributeError:
            committed, over = committed_length(req), getattr(req, "finished_reason", None)
        position = seen if committed is None else committed - len(prompt_ids)
        return Seen(prompt_ids, output_ids, (), position, position >= seen and over is None)

    def end(self, error: SglangLpError) -> None:
        try:
            if not hasattr(self.request, "to_finish"):
                raise error
        except ReferenceError:  # the request itself is gone, and nobody waits for it
            return
        self.request.to_finish = _error(error)
        logger.warning("request ended: %s", error)

    def finish(self, reason: str) -> None:
        if getattr(self.request, "to_finish", reason) is None:
            self.request.to_finish = stop(reason)


class SglangHost(StockHost):
    """A request of a server that runs the plugin.

    Args:
        req: SGLang's request, or a proxy of it.
        pending: Reads the results that its scheduler has not processed yet.
        names: Of the processors that the client may know of.

    Attributes:
        names: Those.
        policy: Fingerprint of the policy under which it was admitted.
    """

    __slots__ = ("_pending", "names", "policy")

    def __init__(self, req: Any, pending: PendingResults, names: Sequence[str] = ()) -> None:
        super().__init__(req, may_lag=False)
        self._pending = pending
        self.names = names
        self.policy: str | None = None

    def look(self, *, tokens: bool) -> Seen:
        req = self.request
        output_ids = req.output_ids
        counts = req.finished_reason is None and not self._pending.discards(req)
        pending: Sequence[int] = ()
        if counts and not tokens and not self._pending.drafts:
            position = super().look(tokens=False).position  # without waiting for the device
        else:
            pending = self._pending.of(req) if counts else ()
            position = len(output_ids) + len(pending)
        # At its limit a request has ended, or it asked for no token at all.
        counts = counts and position < self.limit
        return Seen(req.origin_input_ids, output_ids, pending, position, counts)

    def end(self, error: SglangLpError) -> None:
        try:
            self._end((), _error(error))
        except ReferenceError:  # the request itself is gone, and nobody waits for it
            return

    def finish(self, reason: str) -> None:
        self._end((), stop(reason))

    def end_at(self, position: int, drafted: Sequence[int], error: SglangLpError) -> None:  # noqa: ARG002
        self._end(drafted, _error(error))

    def finish_at(self, position: int, drafted: Sequence[int], reason: str) -> None:  # noqa: ARG002
        self._end(drafted, stop(reason))

    def _end(self, drafted: Sequence[int], reason: Any) -> None:
        end_request(self.request, self._pending.of(self.request), drafted, reason)


def _error(error: SglangLpError) -> Any:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    blame_client = isinstance(error, RequestError)
    status = HTTPStatus.BAD_REQUEST if blame_client else HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "BadRequestError" if blame_client else "InternalServerError"
    reason = FINISH_ABORT(str(error), status, kind)
    setattr(reason, PROCESSOR_FAILED, not blame_client)
    return reason


def stop(reason: str) -> Any:
    """Return SGLang's finish reason for an end that a processor decided."""
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

    return FINISH_MATCHED_STR(reason)
