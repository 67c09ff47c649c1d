"""Pipeline parallelism: decisions of the last rank reach every rank, together with its tokens.

Only the last rank has logits, so processors run only there. The first rank answers, and each rank
decides by itself whether a request is over. SGLang passes the result of a step from the last rank
to the first, from there to the next, and so back to the last; each rank processes it on arrival.
Edits and ends travel with that result, and every rank, the last included, applies them on arrival.
So the ranks agree on every request at every step.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp._engine.apply.answers import Answers, PendingAnswer
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.edits import End
from sglang_lp.faults import from_signal
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.scheduler.endings import end_request
from sglang_lp.server.scheduler.reasons import error_of
from sglang_lp.server.scheduler.sglang_host import SglangHost

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import torch

    from sglang_lp._engine.history.edit_log import EditLog, EditRecorder
    from sglang_lp._engine.history.row import Row
    from sglang_lp.errors import SglangLpError
    from sglang_lp.server.scheduler.pending import PendingResults

    #: Name of a method of hosts or logs, and its arguments.
    Act: TypeAlias = tuple[Any, ...]

logger = logging.getLogger(__name__)

#: Key of SGLang's dict of tensors: pairs of the index of a request and its acts as JSON.
_ACTS = "sglang_lp_acts"
#: Key of the device's answers to questions of the step, one byte for each request.
_ANSWERS = "sglang_lp_answers"

#: In place of the acts of a request that the toolkit failed to edit.
_FAILED = None


class StageHost(SglangHost):
    """Request on one of several pipeline ranks: records ends, which travel with the step's result.

    Attributes:
        acts: Ends, and edits of :class:`StageRecorder`, that were not sent yet, oldest first.
    """

    __slots__ = ("acts",)

    def __init__(self, req: Any, pending: PendingResults, names: Sequence[str] = ()) -> None:
        super().__init__(req, pending, names)
        self.acts: list[Act] = []

    def recorder_of(self, log: EditLog) -> EditRecorder:  # noqa: ARG002 - every rank fills its log
        """Return a recorder of acts."""
        return StageRecorder(self.acts)

    def end(self, error: SglangLpError) -> None:
        """Record an end with an error."""
        self.acts.append(("end", *Coded.of(error)))

    def finish(self, end: End) -> None:
        """Record an end."""
        self.acts.append(("finish", end.reason, end.kind))


class StageRecorder:
    """Recorder on one of several pipeline ranks: its edits travel as ends do.

    Args:
        acts: Receives the edits.
    """

    __slots__ = ("_acts",)

    def __init__(self, acts: list[Act]) -> None:
        self._acts = acts

    def add(self, position: int, *, forced: bool | PendingAnswer) -> None:
        """Record step edits."""
        self._acts.append(("add", position, forced))

    def set_persistent(self, position: int, *, exist: bool, forced: bool) -> None:
        """Record persistent edits."""
        self._acts.append(("set_persistent", position, exist, forced))


class Stages:
    """Passes decisions between pipeline ranks. Its public methods are hooks.

    Args:
        pending: Tells which requests keep the token of a step.
    """

    def __init__(self, pending: PendingResults) -> None:
        self._pending = pending

    def send(self, tensor_dict: dict[str, Any], _scheduler: Any, result: Any, batch: Any) -> None:  # noqa: ARG002 - SGLang's signature
        """Add the acts of a step to the tensors that the last rank sends."""
        try:
            acts, answers = self._take(batch.reqs)
        except BaseException as error:
            if from_signal(error):
                raise
            logger.exception("sglang-lp: decisions of a step are lost; its requests end")
            reqs = enumerate(batch.reqs)
            acts = [(i, _FAILED) for i, req in reqs if req.custom_logit_processor is not None]
            answers = None
        if acts:
            tensor_dict[_ACTS] = acts
        if answers is not None:
            import torch

            tensor_dict[_ANSWERS] = answers.view(torch.uint8)  # not every transport takes bool

    def _take(self, reqs: Sequence[Any]) -> tuple[list[tuple[int, Any]], torch.Tensor | None]:
        """Return the acts of the requests that keep their token, and the answers of the step."""
        acts: list[tuple[int, Any]] = []
        answers = None
        for index, row in enumerate(rows_of([req.sampling_params.custom_params for req in reqs])):
            if row is None or self._pending.discards(reqs[index]):
                continue
            if error_of(reqs[index].to_finish) is not None:
                acts.append((index, _FAILED))
            own: list[Act] = row.host.acts  # type: ignore[attr-defined]
            if not own:
                continue
            for i, (name, *values) in enumerate(own):
                if isinstance(values[-1], PendingAnswer):
                    *known, pending = values
                    answers = pending.answers.on_device
                    own[i] = name, *known, pending[1:]
            acts.append((index, _packed(own)))
            own.clear()
        return acts, answers

    def apply(self, _scheduler: Any, batch: Any, mb_metadata: Any, pp_outputs: Any) -> None:  # noqa: ARG002 - SGLang's signature
        """Apply the acts of a step before SGLang processes its tokens.

        An error here ends the scheduler, because the ranks would no longer agree.
        """
        import torch

        tensors = pp_outputs.tensors
        answers = Answers()
        if _ANSWERS in tensors:
            answers.fetch(tensors[_ANSWERS].view(torch.bool))
        for index, acts in tensors.get(_ACTS, ()):
            req = batch.reqs[index]
            if acts is _FAILED:
                end_request(req)
                continue
            (row,) = rows_of([req.sampling_params.custom_params])
            if row is None:
                raise LookupError("sglang-lp: pipeline ranks do not have the same requests")
            # Only the length counts, as there are no drafts.
            row.edit_log.resolve(range(row.resumed + len(req.output_ids)))
            for act in orjson.loads(acts):
                _apply(row, act, answers)


def _packed(acts: list[Act]) -> bytes | None:
    """Return acts as JSON, which holds nothing of a foreign class."""
    try:
        return orjson.dumps(acts)
    except TypeError:
        logger.exception("sglang-lp: what a processor decided cannot be sent; its request ends")
        return _FAILED


def _apply(row: Row, act: Act, answers: Answers) -> None:
    log, host = row.edit_log, row.host
    match act:
        case "add", position, (logits_row, is_edited):
            log.add(position, forced=PendingAnswer(answers, logits_row, is_edited))
        case "add", position, forced:
            log.add(position, forced=forced)
        case "set_persistent", position, exist, forced:
            log.set_persistent(position, exist=exist, forced=forced)
        case "finish", reason, kind:
            SglangHost.finish(host, End(reason, kind))  # type: ignore[arg-type]
        case "end", *coded:
            SglangHost.end(host, Coded(*coded).as_error())  # type: ignore[arg-type]
