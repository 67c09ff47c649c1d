"""One decoding step over the rows of a batch: who acts, what they want, and one application.

Rows that cannot act yet sleep. The clock counts calls, and a request gets at most one token per
call that it is part of, so a row that sleeps for ``n`` calls is never woken late, whatever the
batch looks like meanwhile; woken early, it looks and goes back to sleep.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sglang_lp.edits import Compiled, Edits
from sglang_lp.errors import ProcessorFault, RequestError, SglangLpError, Unsupported, shown
from sglang_lp.request import NEVER, History, Request

if TYPE_CHECKING:
    import torch

__all__ = ["Batch", "end_request"]

logger = logging.getLogger(__name__)

#: Names of processors whose missing history was reported. One line each is enough; the set is as
#: large as the number of processor classes.
_reported_lag: set[str] = set()

_STALE = (
    "%s cannot see the newest token of its request and leaves such steps unedited. "
    "Any of these gives it the exact history: run the server with the sglang-lp plugin; "
    "set SGLANG_ENABLE_DELAY_SAMPLE=1; start with --disable-overlap-schedule."
)


def end_request(request: Request, error: SglangLpError) -> None:
    """End one running request with an error; the rest of the batch goes on.

    Args:
        request: The request at fault.
        error: Becomes the message. A ``RequestError`` is HTTP 400, anything else 500.

    Raises:
        SglangLpError: ``error`` itself, if there is no SGLang request to end.
    """
    request._wake = NEVER
    request._fixed = None
    sglang_req = request.sglang_req
    if not hasattr(sglang_req, "to_finish"):
        raise error
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    blame_client = isinstance(error, RequestError)
    status = HTTPStatus.BAD_REQUEST if blame_client else HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "BadRequestError" if blame_client else "InternalServerError"
    sglang_req.to_finish = FINISH_ABORT(str(error), status, kind)
    logger.warning("request ended: %s", error)


class Batch:
    """Runs the processors of whatever rows it is given, step by step.

    One for a scheduler process; a processor that is called directly keeps its own.
    """

    def __init__(self) -> None:
        self._clock = 0
        self._fixed_key: tuple[object, ...] = ()
        self._fixed: Compiled | None = None

    def step(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request | None],
        custom_param_list: Sequence[Any],
        masked_rows: Sequence[int] = (),
        *,
        drafted: bool = False,
    ) -> None:
        """Let every processor edit its rows, in place.

        Args:
            logits: Shape ``(rows, vocab)``, any float dtype.
            requests: For each row its request, or ``None`` if it has no processor.
            custom_param_list: For each row SGLang's ``custom_params``, for processors that
                override ``__call__``.
            masked_rows: Rows that a grammar has masked already.
            drafted: Whether a request has several rows, one for each drafted token
                (speculative decoding). Only processors without history can serve those.
        """
        self._clock = clock = self._clock + 1
        awake = [
            (row, request)
            for row, request in enumerate(requests)
            if request is not None and (request._wake <= clock or drafted)
        ]
        edits = Edits(logits.shape[1])
        dense: dict[type, list[tuple[int, Request]]] = {}
        for row, request in awake:
            if drafted and request.processor.needs is not History.NONE:
                if request._wake != NEVER:
                    self._refuse_drafted(request)
            elif request.processor.dense:
                dense.setdefault(type(request.processor), []).append((row, request))
            elif request._fixed is None:
                self._visit(row, request, edits, logits)
        for group in dense.values():
            self._call(logits, group, custom_param_list)
        self._apply(logits, requests, edits, masked_rows)

    def _visit(self, row: int, request: Request, edits: Edits, logits: torch.Tensor) -> None:
        """Let one request's processor look at its step."""
        processor = request.processor
        try:
            if not request.observe():
                return
            if processor.needs is History.NONE:
                request.catch_up()
                request._fixed = fixed = Edits(edits.vocab_size)
                processor.edit(request, fixed)
                request._wake = NEVER
                return
            if not request.exact and processor.needs is History.TOKENS:
                if not processor.tolerates_lag:
                    self._report_lag(processor.name)
                    return
            request.catch_up()
            edits.open_row(row, request.position)
            request._row = logits[row]
            processor.edit(request, edits)
            request._wake = min(NEVER, self._clock + edits.wake_in)
            if request._logits is not None:
                self._write_back(logits, [row], request._logits[None], [request])
        except Exception as error:  # noqa: BLE001 - a processor's fault ends its own request only
            edits.drop(row)
            end_request(request, _as_fault(processor.name, request, error))
        finally:
            request._row = request._logits = None

    def _call(
        self, logits: torch.Tensor, group: list[tuple[int, Request]], custom_params: Sequence[Any]
    ) -> None:
        """Call a processor that computes on whole rows, SGLang's own contract."""
        group = [(row, request) for row, request in group if self._observed(request)]
        if not group:
            return
        rows = [row for row, _ in group]
        requests = [request for _, request in group]
        processor = requests[0].processor
        try:
            selected = logits[rows]
            shape = selected.shape
            result = processor(selected, [custom_params[row] for row in rows])
            if getattr(result, "shape", None) != shape:
                came = getattr(result, "shape", None)
                raise ProcessorFault(
                    f"{processor.name} returned {shown(type(result).__name__)} of shape "
                    f"{None if came is None else tuple(came)}, expected {tuple(shape)}"
                )
        except Exception as error:  # noqa: BLE001 - see _visit
            if len(group) == 1:
                end_request(requests[0], _as_fault(processor.name, requests[0], error))
            else:  # find out whose fault it was
                for single in group:
                    self._call(logits, [single], custom_params)
            return
        self._write_back(logits, rows, result, requests)

    def _observed(self, request: Request) -> bool:
        if not request.observe():
            return False
        if not request.exact and request.processor.needs is History.TOKENS:
            self._report_lag(request.processor.name)
            return False
        return True

    def _write_back(
        self,
        logits: torch.Tensor,
        rows: list[int],
        result: torch.Tensor,
        requests: list[Request],
    ) -> None:
        """Put computed rows back, but none without a finite logit or with a NaN or +inf."""
        good = result.amax(-1).isfinite().tolist()
        for ok, request in zip(good, requests, strict=True):
            if not ok:
                name = request.processor.name
                end_request(
                    request,
                    ProcessorFault(
                        f"{name} left no finite logit, or NaN or +inf, at token {request.position}"
                    ),
                )
        kept = [i for i, ok in enumerate(good) if ok]
        if kept:
            logits[[rows[i] for i in kept]] = result[kept].to(logits.dtype)

    def _apply(
        self,
        logits: torch.Tensor,
        requests: Sequence[Request | None],
        edits: Edits,
        masked_rows: Sequence[int],
    ) -> None:
        compiled = [
            plan
            for plan in (
                self._fixed_plan(logits, requests),
                edits.compile(logits, keep_masked=masked_rows),
            )
            if plan is not None
        ]
        if not compiled:
            return
        guarded = [row for row in masked_rows if requests[row] is not None]
        before = logits[guarded] if guarded else None
        for plan in compiled:
            plan.apply(logits)
            for row, why in plan.conflicts.items():
                self._end_conflict(requests[row], why)
        if before is not None:
            self._undo_dead(logits, guarded, before, requests)

    def _fixed_plan(
        self, logits: torch.Tensor, requests: Sequence[Request | None]
    ) -> Compiled | None:
        """Return the compiled edits of the rows whose edits never change, built anew only when
        the batch does."""
        key: tuple[object, ...] = tuple(
            [
                (row, request.serial)
                for row, request in enumerate(requests)
                if request is not None and request._fixed is not None
            ]
        )
        if not key:
            self._fixed_key, self._fixed = (), None
            return None
        key += (logits.shape, logits.stride(), logits.dtype, logits.device)
        if key != self._fixed_key:
            merged = Edits(logits.shape[1])
            for row, request in enumerate(requests):
                if request is not None and request._fixed is not None:
                    merged.repeated_from(request._fixed, row)
            self._fixed_key, self._fixed = key, merged.compile(logits)
        return self._fixed

    def _undo_dead(
        self,
        logits: torch.Tensor,
        rows: list[int],
        before: torch.Tensor,
        requests: Sequence[Request | None],
    ) -> None:
        """Restore rows in which a grammar and the edits together leave no token."""
        alive = logits[rows].amax(-1).isfinite().tolist()
        for i, row in enumerate(rows):
            if not alive[i]:
                logits[row] = before[i]
                self._end_conflict(requests[row], "the grammar allows none of the tokens left")

    def _end_conflict(self, request: Request | None, why: str) -> None:
        if request is not None:
            where = f"at token {request.position}"
            end_request(
                request, ProcessorFault(f"{request.processor.name}: no token is left {where}: {why}")
            )

    def _refuse_drafted(self, request: Request) -> None:
        """Rows of drafted tokens (speculative decoding) have histories that nobody can see."""
        end_request(
            request,
            Unsupported(
                f"{request.processor.name} needs the history of its request, which speculative "
                "decoding hides: use a server without it"
            ),
        )

    def _report_lag(self, name: str) -> None:
        if name not in _reported_lag:
            _reported_lag.add(name)
            logger.error(_STALE, name)


def _as_fault(name: str, request: Request, error: Exception) -> SglangLpError:
    """Name the processor and the place; the text of a foreign error may hold client data."""
    if isinstance(error, RequestError):
        return error
    text = str(error) if isinstance(error, ProcessorFault) else ""
    what = text or f"raised {type(error).__name__}: {shown(str(error), 200)}"
    if not isinstance(error, ProcessorFault):
        logger.error("%s failed", name, exc_info=error)
    return ProcessorFault(f"{name} failed at token {request.position}: {what}")
