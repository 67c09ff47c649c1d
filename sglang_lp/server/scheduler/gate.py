"""The gate in the scheduler: no request object holds a payload that was not allowed.

Messages reach the scheduler by other ways than the HTTP process, so everything is checked again.
A refusal ends that request and nothing else.
"""

from __future__ import annotations

import copy
import weakref
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NoReturn

from sglang_lp._engine.apply.raw import RawLogprobs
from sglang_lp._engine.history.row import attach_row
from sglang_lp.errors import InstallError, ProcessorFault, RequestError
from sglang_lp.faults import as_fault
from sglang_lp.policy.thinking import BUDGET
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.gate.guard import DECIDED
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.gate.reserved_keys import THOUGHT, check_shape, check_stands
from sglang_lp.server.gate.routed_form import unfold
from sglang_lp.server.scheduler.sglang_host import SglangHost
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sglang_lp._engine.history.arrivals import Arrivals
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.server.gate.guard import Guard
    from sglang_lp.server.scheduler.pending import PendingResults

__all__ = ["InertProcessor", "NoLoads", "make_admit_req", "make_from_str", "refuse_to_load"]


def make_admit_req(guard: Guard, pending: PendingResults, arrivals: Arrivals) -> Any:
    """Return the hook that runs when SGLang has made a request."""

    def admit_req(_result: None, req: Any, *_args: Any, **_kwargs: Any) -> None:
        try:
            given = req.custom_logit_processor is not None or req.sampling_params.custom_params
            if given or not guard.rules.is_empty or writing() is not None:
                _admit(guard, pending, arrivals, req)
        except BaseException as error:  # noqa: BLE001 - one request, whatever is wrong with it
            fault = error
            if not isinstance(error, ProcessorFault):
                fault = as_fault("sglang-lp", "before its request began", error)
            req.custom_logit_processor = None
            req.set_finish_with_abort(
                str(fault), HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError"
            )

    return admit_req


def _admit(guard: Guard, pending: PendingResults, arrivals: Arrivals, req: Any) -> None:
    """Make the row of a request, or refuse it.

    Raises:
        ProcessorFault: The processor failed.
    """
    guard.gate = Gate.SCHEDULER
    guard.vocab_size = getattr(req, "vocab_size", None) or guard.vocab_size
    try:
        _begin(guard, pending, arrivals, req)
    except RequestError as error:
        if _is_awaited(req, pending.scheduler):
            req.custom_logit_processor = DECIDED
            given = _own_params(req, {})
            attach_row(given, _Refusing(error), None, SglangHost(given["__req__"], pending))
            return
        req.custom_logit_processor = None
        req.set_finish_with_abort(str(error), HTTPStatus.BAD_REQUEST, "BadRequestError")


def _begin(guard: Guard, pending: PendingResults, arrivals: Arrivals, req: Any) -> None:
    """Make the row of a request.

    Raises:
        RequestError: Refused.
        ProcessorFault: The processor failed.
    """
    sampling = req.sampling_params
    with guard.counting():
        check_shape(sampling.custom_params, req)
        payload, given = unfold(req.custom_logit_processor, sampling.custom_params)
    check_stands(given)
    admitted = guard.admit(
        payload,
        given,
        getattr(sampling, "beam_width", None),
        # A temperature of 0 has become a top_k of 1.
        sampled=getattr(sampling, "top_k", None) != 1,
        limit=_limit(req, pending.scheduler),
        masked=bool(getattr(req, "return_sampling_mask", False)),
        logprobs=bool(getattr(req, "return_logprob", False)),
        prompt_tokens=len(req.origin_input_ids),
        reasoning=_may_begin_inside(req, given),
    )
    metrics = writing()
    if metrics is not None:
        metrics.begin(("none",) if admitted is None else admitted.names or ("always",))
    if admitted is None:
        return
    req.custom_logit_processor = admitted.payload
    own = admitted.custom_params
    strict = guard.reasoning is not None and guard.reasoning.strict
    if strict and isinstance(given, dict) and BUDGET in given and admitted.thinks:
        own = {**given, BUDGET: -1}  # SGLang would keep the same budget in its own way
    is_same = own is None and given is sampling.custom_params
    # SGLang left the request out if there was no processor, or no dict.
    if not is_same or not isinstance(given, dict) or "__req__" not in given:
        given = _own_params(req, own if own is not None else given or {})
    host = SglangHost(given["__req__"], pending, admitted.names)
    host.policy = guard.fingerprint
    host.resumed = admitted.beside.resumed
    host.raw = RawLogprobs() if admitted.beside.raw else None
    host.tokenizer = guard.tokenizer  # SGLang gives its request one only after this hook
    try:
        row = attach_row(given, admitted.processor, admitted.params, host)
        arrivals.start(row, None if req.output_ids else guard.vocab_size)
    except BaseException as error:  # noqa: BLE001 - the class's own code
        name = type(admitted.processor).__name__
        raise as_fault(name, "before its request began", error) from None


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
    """Ends a request that is refused where its decode server hears of it: at the first token."""

    def __init__(self, error: RequestError) -> None:
        self._error = error

    def edit(self, request: Request, edits: Edits) -> None:  # noqa: ARG002 - the base's
        """Raise."""
        raise self._error


def _may_begin_inside(req: Any, given: Any) -> bool:
    """Tell whether SGLang takes what comes without a start for thoughts."""
    thought = isinstance(given, dict) and THOUGHT in given
    return bool(getattr(req, "require_reasoning", False)) and not thought


def _limit(req: Any, scheduler: Any) -> int | None:
    """Return how many tokens a request can get, as far as it is known before it is queued."""
    limit: int | None = getattr(req.sampling_params, "max_new_tokens", None)
    longest = getattr(scheduler, "max_req_len", None)
    if longest is not None:
        room = max(0, longest - len(req.origin_input_ids) - 1)
        limit = room if limit is None else min(limit, room)
    return limit


def make_from_str(guard: Guard) -> Any:
    """Return what stands where SGLang would turn a payload into a processor."""

    def from_str(_cls: type, json_str: str) -> Any:
        """Return what stands for an allowed class; raises ``PayloadRefused`` for any other."""
        guard.stands_for(json_str)
        return InertProcessor()

    return from_str


class InertProcessor:
    """Stands where SGLang keeps an instance of a batch's processor: nothing of the class runs.

    SGLang makes one for each prefill batch, in the scheduler's thread.
    """

    def __call__(self, *_args: object) -> NoReturn:
        """Raise: the plugin runs each request's own instance."""
        raise InstallError("sglang-lp: SGLang called a processor that the plugin runs itself")


def refuse_to_load(*_args: object, **_kwargs: object) -> NoReturn:
    """Stand where SGLang would unpickle a request's payload."""
    raise InstallError("sglang-lp: nothing that a request sends is unpickled in this process")


class NoLoads:
    """Stands in for the ``dill`` module where SGLang keeps it: it writes, and never reads."""

    def __init__(self, dill: Any) -> None:
        self.dumps = dill.dumps
        self.loads = self.load = refuse_to_load
