"""Runs processors in a scheduler's steps: in SGLang's sampler, and in its verify steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.raw import RawLogprobs
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.errors import Unsupported
from sglang_lp.faults import from_signal
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.scheduler.endings import begin_anew, end_request

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.raw import RawRows
    from sglang_lp._engine.history.drafts import Drafts
    from sglang_lp._engine.history.row import Row
    from sglang_lp.server.scheduler.pending import PendingResults

logger = logging.getLogger(__name__)

_UNSEEN = "this SGLang verifies drafted tokens in a step that sglang-lp does not know"
_NO_FORMS = "sglang-lp: built-ins are asked row by row, which takes longer: no forms, %s: %s"
_FAILED = "sglang-lp: a step failed; its requests end, the server goes on"


class Steps:
    """Steps of one scheduler process.

    No step raises: the scheduler's thread serves all requests, so an error ends only the requests
    of the step that have processors.

    Args:
        pending: Pending results, which the requests of this process read.

    Attributes:
        verified: SGLang's ``SamplingBatchInfo`` of a verify step with processors, until they have
            acted; ``None`` otherwise.
        raw: Data for raw logprobs of the rows that the step edited, until the tokens are known.
    """

    def __init__(self, pending: PendingResults) -> None:
        self.verified: Any = None
        self.raw: RawRows | None = None
        #: SGLang's ``SamplingBatchInfo`` of a verify step that was edited, until the step is over.
        self._edited: Any = None
        #: As above, of a verify step that was skipped.
        self._skipped: Any = None
        self._batch = Batch()
        self._pending = pending

    def load_forms(self, _info: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
        """Compile the forms of built-ins in a scheduler that is ready.

        Only a rank that samples needs them.

        Args:
            scheduler: SGLang's ``Scheduler``.
        """
        if not scheduler.pp_group.is_last_rank:
            return
        try:
            from sglang_lp._engine.forms.forms import Forms
            from sglang_lp.builtins.known_forms import FORMS

            self._batch.forms = Forms(FORMS)
        except Exception as error:  # noqa: BLE001 - whatever numba lacks on this machine
            logger.warning(_NO_FORMS, type(error).__name__, error)

    def run(
        self, logits: torch.Tensor, sampling_batch_info: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """Edit the logits of a step in place, where SGLang's sampler calls processors.

        Args:
            logits: Shape ``(requests, vocab)``.
            sampling_batch_info: SGLang's ``SamplingBatchInfo``.
        """
        info = sampling_batch_info
        if self.verified is not None:
            return  # too early: drafted tokens are not passed here, and penalties follow
        if info is self._edited:
            return  # a verify step that also calls processors itself
        self.raw = None
        try:
            began = perf_counter()
            self._pending.begin()
            _check_shown(logits, len(info.custom_params))
            has_grammar, newest = bool(info.grammars), self._pending.newest
            if not self._batch.step_asleep(
                logits, info.custom_params, 1, has_grammar=has_grammar, newest=newest
            ):
                self._step(logits, info)
            self._count(began)
        except BaseException as error:  # noqa: BLE001 - see the class
            _end_all(info, error)

    def _step(self, logits: torch.Tensor, info: Any) -> None:
        rows = rows_of(info.custom_params)
        custom_params = self._complete(info.custom_params, rows)
        masked = _spread([grammar is not None for grammar in info.grammars or ()], 1)
        self.raw = self._batch.step(
            logits, rows, custom_params, masked, temperatures=_temperatures(info)
        )

    def run_drafts(
        self,
        logits: torch.Tensor,
        info: Any,
        width: int,
        masked: Sequence[bool],
        drafts: Callable[[], Drafts],
    ) -> None:
        """Edit the logits of a verify step in place.

        Args:
            logits: Shape ``(requests * width, vocab)``.
            info: SGLang's ``SamplingBatchInfo``.
            width: Nodes of each request's draft.
            masked: Whether a grammar has masked each request's rows; empty without any grammar.
            drafts: Reads the drafted tokens.
        """
        self.verified = self.raw = None
        self._edited = info
        try:
            began = perf_counter()
            self._pending.begin()
            custom_params = info.custom_params
            _check_shown(logits, width * len(custom_params))
            if not self._batch.step_asleep(logits, custom_params, width, has_grammar=bool(masked)):
                rows, cells = rows_of(custom_params), _spread(masked, width)
                self.raw = self._batch.step(
                    *(logits, rows, custom_params, cells),
                    drafts=drafts,
                    width=width,
                    temperatures=_temperatures(info),
                )
            self._count(began)
        except BaseException as error:  # noqa: BLE001 - see the class
            _end_all(info, error)

    def skip(self, info: Any, width: int) -> bool:
        """Hide processors from a verify step in which none can act; return whether it is skipped.

        Some steps of SGLang are faster without processors: CUDA graphs that also accept drafts, and
        ranks that exchange each row's likeliest token in place of its logits.

        Args:
            info: SGLang's ``SamplingBatchInfo`` of this step. SGLang makes one for each forward.
            width: Nodes of each request's draft.
        """
        try:
            began = perf_counter()
            self._pending.begin()
            if not self._batch.skip(info.custom_params, width):
                return False
            self.verified = self.raw = self._edited = None
            self._skipped = info
            info.has_custom_logit_processor = False
            self._count(began)
        except BaseException as error:  # noqa: BLE001 - see the class
            _end_all(info, error)
            return False
        return True

    def end_step(self, *_step: Any, **_kwargs: Any) -> None:
        """Show processors again after a skipped step.

        Exception: if drafts of requests with processors were verified in a step without hooks,
        these requests end.
        """
        skipped, self._skipped = self._skipped, None
        if skipped is not None:
            skipped.has_custom_logit_processor = True
        info, self.verified, self._edited = self.verified, None, None
        if info is not None:
            _end_all(info, Unsupported(_UNSEEN))

    def _count(self, began: float) -> None:
        metrics = writing()
        if metrics is not None:
            metrics.step(perf_counter() - began, awaited=self._pending.was_read)

    def may_act(self, info: Any, width: int) -> bool:
        """Tell whether the next verify step may read the drafted tokens.

        Args:
            info: SGLang's ``SamplingBatchInfo``.
            width: Nodes of each request's draft.
        """
        return self._batch.may_wake(info.custom_params, width)

    def _complete(self, custom_params: Sequence[Any], rows: Sequence[Row | None]) -> Sequence[Any]:
        """Add pending tokens for processors that read SGLang's request themselves."""
        dense = [row for row in rows if row is not None and row.dense]
        if not any(row.flags.reads_request for row in dense):
            return custom_params
        return [
            {**params, "__req__": _RequestWithPending(row.source, self._pending.of(row.source))}
            if row is not None and row.flags.reads_request
            else params
            for params, row in zip(custom_params, rows, strict=True)
        ]


class _RequestWithPending:
    """SGLang's request with pending tokens in ``output_ids``."""

    def __init__(self, req: Any, pending: Sequence[int]) -> None:
        self._req = req
        self.output_ids = req.output_ids
        if pending:
            self.output_ids = self.output_ids[:]
            self.output_ids.extend(pending)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._req, name)


def _temperatures(info: Any) -> torch.Tensor | None:
    """Return the temperatures of SGLang's logprobs; ``None`` for 1, or if none are needed."""
    if not RawLogprobs.asked or info.is_all_greedy:
        return None
    from sglang.srt.environ import envs

    temperatures: torch.Tensor = info.temperatures
    return None if envs.SGLANG_RETURN_ORIGINAL_LOGPROB.get() else temperatures


def _check_shown(logits: torch.Tensor | None, rows: int) -> None:
    """Refuse a step whose number of rows of logits is not the expected one.

    Raises:
        Unsupported: There are no logits, or another number of rows.
    """
    if logits is None or len(logits) != rows:
        raise Unsupported(_UNSEEN)


def _spread(masked: Sequence[bool], width: int) -> list[int]:
    """Return the indices of masked requests' rows of logits, ``width`` for each request."""
    return [
        request * width + node
        for request, is_masked in enumerate(masked)
        if is_masked
        for node in range(width)
    ]


def _end_all(info: Any, error: BaseException) -> None:
    """End the requests of a step that have processors, using only SGLang's own means."""
    if from_signal(error):
        raise error
    logger.error(_FAILED, exc_info=error)
    for custom_params in info.custom_params:
        req = custom_params.get("__req__") if isinstance(custom_params, dict) else None
        if req is not None:  # SGLang sets __req__ only for requests with a processor
            end_request(req)


def rewind(_result: None, req: Any, *_args: Any, **_kwargs: Any) -> None:
    """Rewind the row of a retracted request: SGLang drops the request's pending results."""
    try:
        if not req.output_ids:
            begin_anew(req)
        for row in rows_of([req.sampling_params.custom_params]):
            if row is not None:
                _rewind(req, row)
    except BaseException as error:
        if from_signal(error):
            raise
        logger.exception("sglang-lp: a request that was retracted ends")
        end_request(req)


def _rewind(req: Any, row: Row) -> None:
    """Rewind a row; if its processor fails, end its request."""
    try:
        row.rewind()
    except BaseException as error:  # noqa: BLE001 - the class's own code
        end_request(req, row.fault(error))
