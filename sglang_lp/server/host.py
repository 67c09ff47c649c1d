"""SGLang's request as the engine sees it: its history, and how it is ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Protocol

from sglang_lp._engine.host import Host, Seen
from sglang_lp.errors import RequestError, SglangLpError
from sglang_lp.server.versions import committed_length

__all__ = ["Pending", "SglangHost", "StockHost"]

logger = logging.getLogger(__name__)


class Pending(Protocol):
    """Tokens that were sampled and are not in their requests yet."""

    def of(self, req: Any) -> Sequence[int]:
        """Return those of one request, oldest first."""


class SglangHost(Host):
    """A request of a server that runs the plugin."""

    __slots__ = ("_pending",)

    def __init__(self, req: Any, pending: Pending | None = None, *, may_lag: bool = False) -> None:
        super().__init__(req, may_lag=may_lag)
        self._pending = pending
        sampling = getattr(req, "sampling_params", None)
        self.restricted = bool(
            getattr(sampling, "min_new_tokens", 0) or getattr(sampling, "logit_bias", None)
        )
        limit = getattr(sampling, "max_new_tokens", None)
        if limit is not None:
            self.limit = limit

    def look(self, *, tokens: bool) -> Seen:
        req = self.request
        output_ids, prompt_ids = req.output_ids, req.origin_input_ids
        seen = len(output_ids)
        try:
            committed, over = req.kv.kv_committed_len, req.finished_reason
        except AttributeError:
            committed, over = committed_length(req), getattr(req, "finished_reason", None)
        position = seen if committed is None else committed - len(prompt_ids)
        counts = position >= seen and over is None
        pending: Sequence[int] = ()
        if tokens and counts and position > seen and self._pending is not None:
            pending = self._pending.of(req)
        return Seen(prompt_ids, output_ids, pending, position, counts)

    def end(self, error: SglangLpError) -> None:
        try:
            if not hasattr(self.request, "to_finish"):
                raise error
        except ReferenceError:  # the request itself is gone, and nobody waits for it
            return
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        blame_client = isinstance(error, RequestError)
        status = HTTPStatus.BAD_REQUEST if blame_client else HTTPStatus.INTERNAL_SERVER_ERROR
        kind = "BadRequestError" if blame_client else "InternalServerError"
        self.request.to_finish = FINISH_ABORT(str(error), status, kind)
        logger.warning("request ended: %s", error)

    def finish(self, reason: str) -> None:
        if getattr(self.request, "to_finish", reason) is None:
            from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

            self.request.to_finish = FINISH_MATCHED_STR(reason)


class StockHost(SglangHost):
    """A request of a server without the plugin, whose newest token may be missing."""

    def __init__(self, req: Any) -> None:
        # A request without SGLang's bookkeeping is a test's, and holds its whole history.
        lags = hasattr(req, "kv") or hasattr(req, "kv_committed_len")
        super().__init__(req, may_lag=lags)
