"""The gate in the scheduler: no request object holds a payload that was not allowed.

Messages reach the scheduler by other ways than the HTTP process, so everything is checked again.
A refusal ends that request and nothing else.
"""

from __future__ import annotations

import copy
import logging
import weakref
from array import array
from contextlib import suppress
from inspect import signature
from typing import TYPE_CHECKING, Any, NoReturn

from sglang_lp import builtins
from sglang_lp._engine.apply.raw import RawLogprobs
from sglang_lp._engine.history.attached import attach_row
from sglang_lp.errors import InstallError, RequestError, SglangLpError
from sglang_lp.faults import OURS, as_fault
from sglang_lp.links import Serving
from sglang_lp.policy.thinking import BUDGET
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.gate.field_checks import (
    POSITIONS,
    check_embeddings,
    check_pooling,
    check_received,
)
from sglang_lp.server.gate.guard import DECIDED
from sglang_lp.server.gate.intake import Intake
from sglang_lp.server.gate.metrics import labels_of, writing
from sglang_lp.server.gate.reserved_keys import MAKING, refuse_placeholder
from sglang_lp.server.gate.whole_answers import find_ending
from sglang_lp.server.scheduler.beams.beam_host import BeamHost
from sglang_lp.server.scheduler.closing_request import ask_for_end
from sglang_lp.server.scheduler.endings import end_request
from sglang_lp.server.scheduler.pipeline import StageHost
from sglang_lp.server.scheduler.sglang_host import Contradicts, SglangHost
from sglang_lp.trust import Gate
from sglang_lp.trust.audit import Asking, asking, safe_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sglang_lp._engine.history.arrivals import Arrivals
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.server.gate.guard import Admitted, Guard
    from sglang_lp.server.scheduler.pending import PendingResults


logger = logging.getLogger(__name__)


class SchedulerGate:
    """Admits requests in the scheduler. Its public methods are hooks.

    Args:
        guard: The guard of this process.
        pending: Reads the results that the scheduler has not processed yet.
        arrivals: Reads the prompts of new requests.
    """

    def __init__(self, guard: Guard, pending: PendingResults, arrivals: Arrivals) -> None:
        self._guard = guard
        self._pending = pending
        self._arrivals = arrivals

    def admit_req(self, _result: None, req: Any, *_args: Any, **_kwargs: Any) -> None:
        """Make the row of a request that SGLang has made, or end the request."""
        try:
            check_received(req, getattr(req, "vocab_size", None))
        except RequestError as error:
            self._refuse(req, error)
            return
        try:
            given = req.custom_logit_processor is not None or req.sampling_params.custom_params
            if given or not self._guard.rules.is_empty or writing() is not None:
                self._admit(req)
        except BaseException as error:  # noqa: BLE001 - one request, whatever is wrong with it
            req.custom_logit_processor = None
            if not isinstance(error, SglangLpError):
                error = as_fault(OURS, "before its request began", error)
            end_request(req, error, begun=False)

    def receive(
        self, original: Callable[..., None], scheduler: Any, recv_req: Any, **kwargs: Any
    ) -> None:
        """Receive a request: a hook around SGLang's function.

        A request whose fields raise in SGLang's own code before it joins the queue is ended.

        SGLang's scheduler ends with such an error: a session that replaces a request, for example.
        """
        try:
            check_pooling(recv_req)
            _check_embeddings(scheduler, recv_req)
            _keep_what_was_sent(scheduler, recv_req)
            original(scheduler, recv_req, **kwargs)
        except Exception as error:
            if not isinstance(error, RequestError):
                logger.exception("sglang-lp: SGLang could not receive a request")
                error = RequestError(f"SGLang cannot receive this request: {type(error).__name__}")
            req = _made_plain(scheduler, recv_req)
            self._refuse(req, error)
            scheduler.init_req_max_new_tokens(req)
            scheduler._add_request_to_queue(req)  # noqa: SLF001 - as SGLang does it

    def from_str(self, _cls: type, json_str: str) -> InertProcessor:
        """Replace SGLang's unpickling of a payload, and refuse one that is not allowed."""
        self._guard.check_known(json_str)
        return InertProcessor()

    def _admit(self, req: Any) -> None:
        """Make the row of a request, or refuse it.

        Raises:
            SglangLpError: The processor or the toolkit failed.
        """
        guard = self._guard
        guard.gate = Gate.SCHEDULER
        asking.set(Asking(rid=safe_id(getattr(req, "rid", None))))
        guard.server.vocab_size = getattr(req, "vocab_size", None) or guard.server.vocab_size
        try:
            self._begin(req)
        except RequestError as error:
            self._end(req, error)

    def _refuse(self, req: Any, error: RequestError) -> None:
        """End a request with a field of SGLang's that is out of range."""
        self._guard.gate = Gate.SCHEDULER
        asking.set(Asking(rid=safe_id(getattr(req, "rid", None))))
        with suppress(RequestError), self._guard.counting():
            raise error
        neutralize(req)
        self._end(req, error)

    def _end(self, req: Any, error: RequestError) -> None:
        """End a refused request."""
        if _is_awaited(req, self._pending.scheduler):
            req.custom_logit_processor = DECIDED
            given = _own_params(req, {})
            host = SglangHost(given["__req__"], self._pending)
            attach_row(given, [Serving(_Refusing(error), None)], host)
            return
        req.custom_logit_processor = None
        end_request(req, error, begun=False)

    def _begin(self, req: Any) -> None:
        """Make the row of a request.

        Raises:
            RequestError: Refused.
            SglangLpError: The processor or the toolkit failed.
        """
        guard = self._guard
        with guard.counting():
            intake = Intake.of_req(req, getattr(self._pending.scheduler, "max_req_len", None))
        given = intake.custom_params
        refuse_placeholder(given)
        admitted = guard.admit(intake)
        with guard.counting():
            ending = find_ending(guard, intake, admitted)
        if ending is not None:
            ask_for_end(req, ending)
        metrics = writing()
        if metrics is not None:
            metrics.begin(("none",) if admitted is None else labels_of(admitted.names))
        if admitted is None:
            return
        req.custom_logit_processor = admitted.payload
        own = admitted.custom_params
        strict = guard.server.reasoning is not None and guard.server.reasoning.strict
        if strict and isinstance(given, dict) and BUDGET in given and admitted.thinks:
            own = {**given, BUDGET: -1}  # SGLang would keep the same budget in its own way
        is_same = own is None and given is req.sampling_params.custom_params
        # SGLang left the request out if there was no processor, or no dict.
        if not is_same or not isinstance(given, dict) or "__req__" not in given:
            given = _own_params(req, own if own is not None else given or {})
        kind = SglangHost
        if guard.server.stages > 1:  # where SGLang searches no beams
            kind = StageHost
        elif intake.searches_beams:
            kind = BeamHost
        host = kind(given["__req__"], self._pending, admitted.names)
        host.policy, host.phases = guard.fingerprint, admitted.phases
        host.contradicts = _contradicts(admitted, intake, decides=not guard.rules.is_empty)
        host.resumed = admitted.beside.resumed
        host.raw = RawLogprobs() if admitted.beside.raw else None
        sent = intake.custom_params
        making = sent.get(MAKING) if isinstance(sent, dict) else None
        host.tokenizer = guard.server.tokenizer  # SGLang gives its request one only after this hook
        row = attach_row(given, admitted.servings, host)
        try:
            self._arrivals.start(row, None if req.output_ids else guard.server.vocab_size, making)
        except BaseException as error:  # noqa: BLE001 - the class's own code
            raise row.fault(error, when="before its request began") from None


def _contradicts(admitted: Admitted, intake: Intake, *, decides: bool) -> Contradicts:
    """Return the party at fault if the edits of a request leave no token.

    Args:
        admitted: The request.
        intake: As the client sent it.
        decides: Whether the operator decided anything for requests.
    """
    only = type(admitted.servings[0].processor)
    if len(admitted.servings) == 1 and only.__module__ != builtins.__name__:
        return Contradicts.CLASS
    if not decides:
        return Contradicts.CLIENT
    # Rules that read the prompt may be at odds because of it: the operator did not write it.
    is_asked = intake.names_anything or any(one.in_row.reads_prompt for one in admitted.servings)
    return Contradicts.BOTH if is_asked else Contradicts.POLICY


def _check_embeddings(scheduler: Any, recv_req: Any) -> None:
    """Refuse embeddings in the place of tokens that the served model cannot take.

    Raises:
        RequestError: They have another width, or the model has no such method, which only its
            class tells.
    """
    _check_input_embeds(scheduler, recv_req)
    if getattr(recv_req, "positional_embed_overrides", None) is None:
        return
    check_embeddings(recv_req, scheduler)
    if not hasattr(scheduler.tp_worker.model_runner.model, "get_input_embeddings"):
        raise RequestError(
            "positional_embed_overrides: expected none, as the served model takes no embeddings "
            "in the place of tokens; leave them out"
        )


def _check_input_embeds(scheduler: Any, recv_req: Any) -> None:
    """Refuse ``input_embeds`` that the served model cannot take: SGLang's scheduler ends with them.

    Raises:
        RequestError: They have another width, the forward of the model has no such parameter, or
            the model is not of bfloat16, which SGLang makes of all embeddings.
    """
    given = getattr(recv_req, "input_embeds", None)
    if given is None:
        return
    width = scheduler.model_config.hidden_size
    other = next((len(one) for one in given if len(one) != width), None)
    if other is not None:
        raise RequestError(
            f"input_embeds: expected embeddings of {width} numbers, the width of the served model, "
            f"got {other}"
        )
    forward = signature(scheduler.tp_worker.model_runner.model.forward)
    kind = str(scheduler.model_config.dtype)
    if "input_embeds" not in forward.parameters or kind != "torch.bfloat16":
        raise RequestError(
            "input_embeds: expected none, as the served model takes no embeddings; send text or "
            "input_ids"
        )


def _keep_what_was_sent(scheduler: Any, recv_req: Any) -> None:
    """Leave out of a session the tokens of its last turn that the client did not get.

    SGLang puts all tokens of a turn before the prompt of the next turn: also drafts that a step
    committed behind the end, and a token that failed edits did not see. In a session with
    ``streaming`` SGLang itself leaves them out.
    """
    params = getattr(recv_req, "session_params", None)
    if params is None:
        return
    session = scheduler.session_controller.get(params.id)
    node = session.req_nodes.get(params.rid) if session is not None else None
    if node is not None and node.req.finished() and node.req.finished_len is not None:
        node.req.output_ids = node.req.output_ids[: node.req.finished_len]


def neutralize(req: Any) -> None:
    """Give a refused request the fields of one that asks for nothing.

    SGLang computes its first token all the same, in a batch with others.
    """
    req.sampling_params = _plain_sampling(req)
    req.logprob.top_logprobs_num, req.logprob.token_ids_logprob = 0, None
    req.positional_embed_overrides = None
    for name in POSITIONS:
        if hasattr(req, name):  # SGLang 0.5.20 does not have all
            setattr(req, name, None)


def _made_plain(scheduler: Any, recv_req: Any) -> Any:
    """Return SGLang's request with the id and the owner of one that could not be made."""
    from sglang.srt.managers.schedule_batch import Req

    size = scheduler.model_config.vocab_size
    prompt, sampling = array("q", [0]), _plain_sampling(recv_req)
    owner = {"http_worker_ipc": recv_req.http_worker_ipc, "time_stats": recv_req.time_stats}
    req = Req(recv_req.rid, "", prompt, sampling, vocab_size=size, **owner)
    req.tokenizer = scheduler.tokenizer
    return req


def _plain_sampling(req: Any) -> Any:
    """Return sampling parameters of a request's kind that ask for one token and nothing else."""
    sampling = type(req.sampling_params)(max_new_tokens=1)
    sampling.normalize(None)
    return sampling


def _own_params(req: Any, custom_params: Mapping[str, Any]) -> dict[str, Any]:
    """Give a request sampling parameters of its own, which name it as SGLang does."""
    given = {**custom_params, "__req__": weakref.proxy(req)}
    req.sampling_params = copy.copy(req.sampling_params)
    req.sampling_params.custom_params = given
    return given


def _is_awaited(req: Any, scheduler: Any) -> bool:
    """Tell whether a decode server waits for the first token of this request."""
    mode = getattr(scheduler, "disaggregation_mode", None)
    return getattr(mode, "value", None) == "prefill" and req.bootstrap_room is not None


class _Refusing(LogitProcessor):
    """Ends a refused request at its first token, where the decode server learns of the refusal."""

    def __init__(self, error: RequestError) -> None:
        self._error = error

    def edit(self, request: Request, edits: Edits) -> None:  # noqa: ARG002 - the base's
        """Raise."""
        raise self._error


class InertProcessor:
    """Replaces SGLang's instance of a batch's processor, so that nothing of the class runs.

    SGLang makes one for each prefill batch, in the scheduler's thread.
    """

    def __call__(self, *_args: object) -> NoReturn:
        """Raise: the plugin runs each request's own instance."""
        raise InstallError("sglang-lp: SGLang called a processor that the plugin runs itself")


def refuse_to_load(*_args: object, **_kwargs: object) -> NoReturn:
    """Replace the functions with which SGLang would unpickle a request's payload."""
    raise InstallError("sglang-lp: nothing that a request sends is unpickled in this process")


class NoLoads:
    """Replaces SGLang's ``dill`` module: it pickles, and never unpickles."""

    def __init__(self, dill: Any) -> None:
        self.dumps = dill.dumps
        self.loads = self.load = refuse_to_load
