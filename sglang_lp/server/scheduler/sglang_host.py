"""SGLang's request as the engine's host: reads the history, and ends the request."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.history.host import Host, Seen
from sglang_lp.errors import Contradiction, ProcessorFault, SglangLpError
from sglang_lp.server.scheduler.endings import end_request, end_with_token
from sglang_lp.server.scheduler.own_fields import may_mask, may_spoil
from sglang_lp.server.scheduler.reasons import error_reason, finish_reason
from sglang_lp.text.encoding import with_texts
from sglang_lp.trust.audit import safe_id

if TYPE_CHECKING:
    from sglang_lp.edits import End
    from sglang_lp.server.scheduler.pending import PendingResults

logger = logging.getLogger(__name__)


class Contradicts(Enum):
    """The party at fault if the edits of a request leave no token."""

    CLASS = "the only class that runs"
    CLIENT = "the client, by what it combines or by parameters of a built-in"
    POLICY = "the operator: only the operator's processors run"
    BOTH = "the client, by its prompt or what it asks for in addition to the operator's processors"


class StockHost(Host):
    """Request on a server without the plugin, whose history may lack the newest token.

    Args:
        req: SGLang's request, or a proxy of it.
        may_lag: As for ``Host``; ``None`` detects it.
    """

    __slots__ = ()

    def __init__(self, req: Any, *, may_lag: bool | None = None) -> None:
        if may_lag is None:
            # Only requests of tests lack SGLang's bookkeeping; their history is complete.
            may_lag = hasattr(req, "kv")
        super().__init__(req, may_lag=may_lag)
        sampling = getattr(req, "sampling_params", None)
        self.spoils = may_spoil(sampling, getattr(req, "vocab_size", None))
        self.restricted = self.spoils or may_mask(sampling)
        temperature = getattr(sampling, "temperature", 1.0)
        self.temperature = temperature if isinstance(temperature, int | float) else math.nan
        self.returns_sampling_mask = bool(getattr(req, "return_sampling_mask", False))
        limit = getattr(sampling, "max_new_tokens", None)
        if limit is not None:
            self.limit = limit

    def look(self, *, tokens: bool) -> Seen:  # noqa: ARG002 - output_ids has all there are
        req = self.request
        output_ids, prompt_ids = req.output_ids, req.origin_input_ids
        seen = len(output_ids)
        try:
            committed, over = req.kv.kv_committed_len, req.finished_reason
        except AttributeError:
            committed, over = None, getattr(req, "finished_reason", None)
        position = seen if committed is None else committed - len(prompt_ids)
        return prompt_ids, output_ids, (), position, position >= seen and over is None

    def end(self, error: SglangLpError) -> None:
        try:
            if not hasattr(self.request, "to_finish"):
                raise error
        except ReferenceError:  # SGLang has freed the request
            return
        end_request(self.request, error)

    def finish(self, end: End) -> None:
        if getattr(self.request, "to_finish", end) is None:
            self.request.to_finish = finish_reason(end, len(self.request.output_ids) + 1)


class SglangHost(StockHost):
    """Request on a server that runs the plugin.

    Args:
        req: SGLang's request, or a proxy of it.
        pending: Reads the results that the scheduler has not processed yet.
        names: Names of the processors that the client may know.

    Attributes:
        names: Names of the processors that the client may know.
        pending: As the argument.
        phases: The phase in which each of them holds; empty if all hold everywhere.
        policy: Fingerprint of the policy under which the request was admitted.
        contradicts: The party at fault if the edits leave no token.
    """

    __slots__ = ("contradicts", "names", "phases", "policy")

    def __init__(self, req: Any, pending: PendingResults, names: Sequence[str] = ()) -> None:
        super().__init__(req, may_lag=False)
        self.pending: PendingResults = pending
        self.names = names
        self.phases: tuple[str, ...] = ()
        self.policy: str | None = None
        self.contradicts = Contradicts.CLASS

    def look(self, *, tokens: bool) -> Seen:
        req = self.request
        output_ids = req.output_ids
        counts = req.finished_reason is None and not self.pending.discards(req)
        pending: Sequence[int] = ()
        if counts and not tokens and not self.pending.drafts:
            *_, position, _ = super().look(tokens=False)  # without waiting for the device
        else:
            pending = self.pending.of(req) if counts else ()
            position = len(output_ids) + len(pending)
        # A request at its limit has ended, or asked for zero tokens.
        counts = counts and position < self.limit
        return req.origin_input_ids, output_ids, pending, position, counts

    def no_token_left(self, at: int, why: str, *, masked: bool) -> SglangLpError:
        if self.contradicts is Contradicts.CLASS and not masked:
            return super().no_token_left(at, why, masked=masked)
        rid = safe_id(getattr(self.request, "rid", None))
        logger.warning("sglang-lp: no token is left for request %s: %s", rid, why)
        if self.contradicts is Contradicts.POLICY and not masked:
            return ProcessorFault("no token is left by the processors of this server's operator")
        if self.contradicts in {Contradicts.POLICY, Contradicts.BOTH}:
            return Contradiction(
                f"no token is left at token {at}: this request, or its prompt, contradicts what "
                "this server's operator decided; ask for something else"
            )
        return Contradiction(
            f"no token is left at token {at} by {', '.join(self.names)}: "
            f"{with_texts(why, self.tokenizer)}; change these processors, their parameters or the "
            "format that the request asks for"
        )

    def end(self, error: SglangLpError) -> None:
        self._fail((), error)

    def finish(self, end: End) -> None:
        length = len(self.request.output_ids) + len(self.pending.of(self.request))
        self._end((), finish_reason(end, length + 1))

    def end_at(self, position: int, drafted: Sequence[int], error: SglangLpError) -> None:  # noqa: ARG002
        self._fail(drafted, error)

    def finish_at(self, position: int, drafted: Sequence[int], end: End) -> None:
        self._end(drafted, finish_reason(end, position + 1 - self.resumed))

    def _end(self, drafted: Sequence[int], reason: Any) -> None:
        end_with_token(self.request, self.pending.of(self.request), drafted, reason)

    def _fail(self, drafted: Sequence[int], error: SglangLpError) -> None:
        try:
            self._end(drafted, error_reason(error))
        except ReferenceError:  # SGLang has freed the request
            return
        except Exception:
            logger.exception("sglang-lp: a request ends earlier than with the token that failed")
            end_request(self.request, error)
