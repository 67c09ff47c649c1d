"""One decoding step over the rows of a batch: who acts, what they want, and one application.

Rows that cannot act yet sleep. The clock counts calls, and a request gets at most one token per
call that it is part of, so a row that sleeps for ``n`` calls is never woken late, whatever the
batch looks like meanwhile; woken early, it looks and goes back to sleep. There is one clock for
the process: a stock server hands rows from one processor instance, and so one batch, to another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.edits import NEVER, Compiled, Edits
from sglang_lp.errors import ProcessorFault, RequestError, SglangLpError, Unsupported, shown
from sglang_lp.request import History, Request

if TYPE_CHECKING:
    from logging import Logger

    import torch

    from sglang_lp.params import Parameters
    from sglang_lp.processor import LogitProcessor

__all__ = ["Batch", "Row"]

#: Classes of processors whose missing history was reported. One line each is enough.
_reported_lag: set[type] = set()

_STALE = (
    "%s cannot see the newest token of its request and leaves such steps unedited. "
    "Any of these gives it the exact history: run the server with the sglang-lp plugin; "
    "set SGLANG_ENABLE_DELAY_SAMPLE=1; start with --disable-overlap-schedule."
)

#: Looking up a member of an enumeration takes 0.1 µs in Python 3.11, and this is per row.
_NONE, _TOKENS = History.NONE, History.TOKENS

_serials = count(1)
_clock = count(1)


class Row:
    """One request in the batch: its processor, its history as far as fed, and when to look again.

    The history is read from SGLang's own request object, never counted: how often the sampler
    runs says nothing (chunked prefill samples results that are thrown away, retraction runs a
    request again). State is fed from that history and can always be rebuilt from it.

    Attributes:
        processor: Serves the request.
        needs: What it must know of the tokens.
        dense: Whether it computes on whole rows.
        request: What the processor sees.
        sglang_req: SGLang's request (or a proxy of it), or ``None`` where nobody runs one.
        wake: Reading of the clock before which this row needs no look.
        restricted: Whether SGLang itself may set logits of the request to ``-inf``, grammars apart.
        fixed: Edits that are the same at every step, once known.
        serial: Another number for every row, and a new one when ``fixed`` changes.
    """

    __slots__ = (
        "_fed",
        "_last",
        "_started",
        "dense",
        "fixed",
        "needs",
        "processor",
        "request",
        "restricted",
        "serial",
        "sglang_req",
        "wake",
    )

    def __init__(
        self,
        processor: LogitProcessor,
        params: Parameters | None,
        sglang_req: Any,
        *,
        may_lag: bool | None = None,
    ) -> None:
        if may_lag is None:
            # A request without SGLang's bookkeeping is a test's, and holds its whole history.
            may_lag = hasattr(sglang_req, "kv") or hasattr(sglang_req, "kv_committed_len")
        self.processor = processor
        self.needs = processor.needs
        self.dense = processor.dense
        self.request = Request(
            params, may_lag=may_lag, tokenizer=getattr(sglang_req, "tokenizer", None)
        )
        self.sglang_req = sglang_req
        sampling = getattr(sglang_req, "sampling_params", None)
        self.restricted = bool(
            getattr(sampling, "min_new_tokens", 0) or getattr(sampling, "logit_bias", None)
        )
        self.wake = 0
        self.fixed: Edits | None = None
        self.serial = next(_serials)
        self._started = False
        self._fed = 0
        self._last: int | None = None

    def look(self) -> bool:
        """Read the history anew, and feed the state every token that it has not seen, once.

        Returns:
            Whether there is something to do: not if the processor cannot see what it needs; and
            not, unless it needs nothing, if the result of this step will be thrown away (a chunk
            of a prefill that is not its last, a request that has just finished).
        """
        req, request = self.sglang_req, self.request
        if req is None:
            output_ids = request.output_ids
            seen = len(output_ids)
        else:
            output_ids, prompt_ids = req.output_ids, req.origin_input_ids
            seen = len(output_ids)
            try:
                committed, over = req.kv.kv_committed_len, req.finished_reason
            except AttributeError:
                committed, over = _read_of_another(req)
            position = seen if committed is None else committed - len(prompt_ids)
            request.position = position
            request.exact = exact = position == seen
            if prompt_ids is not request.prompt_ids or output_ids is not request.output_ids:
                self._adopt(prompt_ids, output_ids)
            if (position < seen or over is not None) and self.needs is not _NONE:
                return False
            if not exact and not self._copes_with_lag():
                return False
        fed = self._fed
        if fed and (fed > seen or output_ids[fed - 1] != self._last):  # rewritten history
            self._started = False
        if not self._started:
            fed = 0
            request.state = self.processor.start(request)
            self._started = True
        if seen > fed:
            # Nearly always one; a list of it is made in less time than a slice of an array.
            new = [output_ids[fed]] if seen == fed + 1 else [*output_ids[fed:seen]]
            self.processor.advance(request, new)
            self._last = new[-1]
        self._fed = seen
        return True

    def end(self, error: SglangLpError) -> None:
        """End this running request with an error; the rest of the batch goes on.

        Args:
            error: Becomes the message. A ``RequestError`` is HTTP 400, anything else 500.

        Raises:
            SglangLpError: ``error`` itself, if there is no SGLang request to end.
        """
        self.settle(None)
        try:
            if not hasattr(self.sglang_req, "to_finish"):
                raise error
        except ReferenceError:  # the request itself is gone, and nobody waits for it
            return
        from http import HTTPStatus

        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        blame_client = isinstance(error, RequestError)
        status = HTTPStatus.BAD_REQUEST if blame_client else HTTPStatus.INTERNAL_SERVER_ERROR
        kind = "BadRequestError" if blame_client else "InternalServerError"
        self.sglang_req.to_finish = FINISH_ABORT(str(error), status, kind)
        _logger().warning("request ended: %s", error)

    def settle(self, fixed: Edits | None) -> None:
        """Look at this row no more, and make these edits, if any, at every step."""
        self.fixed, self.wake = fixed, NEVER
        self.serial = next(_serials)

    def finish(self, reason: str) -> None:
        """End this running request with its next token, as a stop string would."""
        if getattr(self.sglang_req, "to_finish", reason) is None:
            from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

            self.sglang_req.to_finish = FINISH_MATCHED_STR(reason)

    def _copes_with_lag(self) -> bool:
        """Tell whether the processor does without the newest token; if not, say so once."""
        processor = self.processor
        if self.needs is not _TOKENS or processor.tolerates_lag:
            return True
        if processor.kind not in _reported_lag:
            _reported_lag.add(processor.kind)
            _logger().error(_STALE, processor.name)
        return False

    def _adopt(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        """Take over new sequence objects; the state stays only if they extend the old ones."""
        fed, old = self._fed, self.request
        if (
            len(output_ids) < fed
            or output_ids[:fed] != old.output_ids[:fed]
            or (prompt_ids is not old.prompt_ids and list(prompt_ids) != list(old.prompt_ids))
        ):
            self._started = False
        old.prompt_ids = prompt_ids
        old.output_ids = output_ids


def _read_of_another(req: Any) -> tuple[int | None, Any]:
    """Return ``kv_committed_len`` and ``finished_reason`` of a request unlike SGLang 0.5.23's."""
    # 0.5.18 keeps it in the request itself, beside a kv that has none; a test's may have neither.
    committed = getattr(req, "kv_committed_len", None)
    committed = getattr(getattr(req, "kv", None), "kv_committed_len", committed)
    return committed, getattr(req, "finished_reason", None)


class Batch:
    """Runs the processors of whatever rows it is given, step by step.

    One for a scheduler process; a processor that is called directly keeps its own.
    """

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._unchanged: tuple[Compiled | None, list[int]] = (None, [])

    def step(
        self,
        logits: torch.Tensor,
        rows: Sequence[Row | None],
        custom_param_list: Sequence[Any],
        masked: Sequence[int] = (),
        *,
        drafted: bool = False,
    ) -> None:
        """Let every processor edit its rows, in place.

        Args:
            logits: Shape ``(rows, vocab)``, any float dtype.
            rows: The request of each row of ``logits``, or ``None`` if it has no processor.
            custom_param_list: For each row SGLang's ``custom_params``, for processors that
                override ``__call__``.
            masked: Indices of rows that a grammar has masked already.
            drafted: Whether a request has several rows, one for each drafted token
                (speculative decoding). Only processors without history can serve those.
        """
        clock = next(_clock)
        edits = Edits(logits.shape[1], logits)
        step = _Step(logits, rows, custom_param_list, masked, edits, clock, {}, [])
        for index, row in enumerate(rows):
            if row is None or (row.wake > clock and (row.wake >= NEVER or not drafted)):
                continue
            if drafted and row.needs is not _NONE:
                _refuse_drafted(row)
            else:
                _visit(step, edits, index, row)
        for indices in step.dense.values():
            _call(step, indices)
        self._apply(step)

    def _apply(self, step: _Step) -> None:
        logits, rows, masked = step.logits, step.rows, step.masked
        fixed, guarded = self._standing(logits, rows, masked)
        guarded = [*{*guarded, *step.rewritten}]
        plans = [fixed, step.edits.compile(logits, keep_masked=masked)]
        if plans == [None, None]:
            return
        before = logits[guarded] if guarded else None
        for plan in plans:
            if plan is not None:
                plan.apply(logits)
                for index, why in plan.conflicts.items():
                    _end_conflict(rows[index], why)
        if before is not None:
            _undo_dead(logits, rows, guarded, before)

    def _standing(
        self, logits: torch.Tensor, rows: Sequence[Row | None], masked: Sequence[int]
    ) -> tuple[Compiled | None, list[int]]:
        """Return what changes only when the batch does.

        Returns:
            The edits that are the same at every step, compiled; and the rows in which edits and
            what SGLang masks could together leave no token.
        """
        serials = [row and row.serial for row in rows]
        key = (serials, logits.shape, logits.stride(), logits.dtype, logits.device, *masked)
        if key != self._key:
            merged = Edits(logits.shape[1])
            guarded = []
            for index, row in enumerate(rows):
                if row is not None:
                    if row.restricted or index in masked:
                        guarded.append(index)
                    if row.fixed is not None:
                        merged.open_row(index, 0)
                        merged.repeat(row.fixed)
            self._key = key
            self._unchanged = merged.compile(logits, keep_masked=masked), guarded
        return self._unchanged


class _Step(NamedTuple):
    """What one step works on: the arguments of :meth:`Batch.step`, and what comes of them."""

    logits: torch.Tensor
    rows: Sequence[Row | None]
    custom_params: Sequence[Any]
    masked: Sequence[int]
    edits: Edits
    clock: int
    #: Rows of processors that compute on whole rows, by their class.
    dense: dict[type, list[int]]
    #: Rows whose logits a processor changed itself. Its edits may take what it left.
    rewritten: list[int]


def _visit(step: _Step, edits: Edits, index: int, row: Row) -> None:
    """Let one request's processor look at its step."""
    processor, request = row.processor, row.request
    try:
        if not row.look():
            return
        if row.dense:
            step.dense.setdefault(processor.kind, []).append(index)
        elif row.needs is _NONE:
            fixed = Edits(edits.vocab_size)
            processor.edit(request, fixed)
            row.settle(fixed)
        else:
            edits.open_row(index, request.position)
            request.lent = edits
            processor.edit(request, edits)
            row.wake = step.clock + edits.wake_in
            if edits.finish_reason is not None:
                row.finish(edits.finish_reason)
            request.lent = None
            if request.copied is not None:
                copied, request.copied = request.copied, None
                _write_back(step, [index], copied[None])
                step.rewritten.append(index)
    except Exception as error:  # noqa: BLE001 - a processor's fault ends its own request only
        request.lent = request.copied = None
        edits.drop(index)
        row.end(_as_fault(row, error))


def _call(step: _Step, indices: list[int]) -> None:
    """Call a processor that computes on whole rows, SGLang's own contract."""
    group = [row for row in (step.rows[index] for index in indices) if row is not None]
    try:
        result = _computed(
            group[0].processor,
            step.logits[indices],
            [step.custom_params[index] for index in indices],
        )
        _write_back(step, indices, result)
    except Exception as error:  # noqa: BLE001 - see _visit
        if len(group) == 1:
            group[0].end(_as_fault(group[0], error))
        else:  # find out whose fault it was
            for index in indices:
                _call(step, [index])


def _computed(
    processor: LogitProcessor, selected: torch.Tensor, custom_params: list[Any]
) -> torch.Tensor:
    """Call a dense processor and check the shape and type of what it returns."""
    import torch

    expected = tuple(selected.shape)
    result: Any = processor(selected, custom_params)
    if not isinstance(result, torch.Tensor):
        came = type(result).__name__
    elif tuple(result.shape) != expected or not result.is_floating_point():
        came = f"{result.dtype} of shape {tuple(result.shape)}"
    else:
        computed: torch.Tensor = result
        return computed
    raise ProcessorFault(f"it returned {came}, expected a tensor of floats of shape {expected}")


def _write_back(step: _Step, indices: list[int], result: torch.Tensor) -> None:
    """Put computed rows back; what a grammar masked stays masked.

    Raises:
        ProcessorFault: A row has no finite logit, or NaN or +inf. None is put back then.
    """
    logits = step.logits
    result = result.to(logits.dtype)  # first: a number may be finite in one type only
    guarded = [i for i, index in enumerate(indices) if index in step.masked]
    if guarded:
        shut = logits[[indices[i] for i in guarded]] == -math.inf
        result = result.clone()
        result[guarded] = result[guarded].masked_fill(shut, -math.inf)
    if not bool(result.amax(-1).isfinite().all()):
        raise ProcessorFault("it left no finite logit, or NaN or +inf among them")
    logits[indices] = result


def _undo_dead(
    logits: torch.Tensor, rows: Sequence[Row | None], indices: list[int], before: torch.Tensor
) -> None:
    """Restore rows in which edits and what is masked already together leave no token."""
    alive = logits[indices].amax(-1).isfinite().tolist()
    for i, index in enumerate(indices):
        if not alive[i]:
            logits[index] = before[i]
            _end_conflict(
                rows[index],
                "what its processors wrote into the logits, its grammar, min_new_tokens or "
                "logit_bias allows none of those left",
            )


def _end_conflict(row: Row | None, why: str) -> None:
    if row is not None:
        row.end(_as_fault(row, ProcessorFault(f"no token is left: {why}")))


def _refuse_drafted(row: Row) -> None:
    """Refuse rows of drafted tokens, whose histories nobody can see."""
    row.end(
        Unsupported(
            f"{row.processor.name} needs the history of its request, which speculative "
            "decoding hides: use a server without it"
        )
    )


def _as_fault(row: Row, error: Exception) -> SglangLpError:
    """Name the processor and the place; the text of a foreign error may hold client data."""
    if isinstance(error, RequestError):
        return error
    name = row.processor.name
    if isinstance(error, ProcessorFault):
        what = str(error)
    else:
        import traceback

        _logger().error("%s failed", name, exc_info=error)
        # Not str(), which runs the foreign class's own code.
        what = shown(traceback.format_exception_only(error)[-1].strip(), 200)
    return ProcessorFault(f"{name} failed at token {row.request.position}: {what}")


def _logger() -> Logger:
    # Not imported above, because the client imports this module and logs nothing.
    import logging

    return logging.getLogger(__name__)
