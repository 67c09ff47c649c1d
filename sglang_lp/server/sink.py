"""The gate in the scheduler: no request object holds a payload that was not allowed.

Messages reach the scheduler by other ways than the HTTP process, so everything is checked again.
A refusal ends that request and nothing else.
"""

from __future__ import annotations

import copy
import logging
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

from sglang_lp._engine.rows import attach_row
from sglang_lp.errors import InstallError, RequestError
from sglang_lp.server.host import SglangHost
from sglang_lp.server.versions import abort_unstarted
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from sglang_lp.server.guard import Guard
    from sglang_lp.server.pending import PendingResults

logger = logging.getLogger(__name__)

__all__ = ["NoLoads", "make_admit_req", "make_from_str", "refuse_to_load"]


def make_admit_req(guard: Guard, pending: PendingResults) -> Any:
    """Return the hook that runs after ``Req.__init__``."""

    def admit_req(_result: None, req: Any, *_args: Any, **_kwargs: Any) -> None:
        payload = req.custom_logit_processor
        if payload is None:
            return
        guard.gate = Gate.SCHEDULER
        guard.vocab_size = getattr(req, "vocab_size", None) or guard.vocab_size
        given = req.sampling_params.custom_params
        try:
            # A temperature of 0 has become a top_k of 1.
            sampled = getattr(req.sampling_params, "top_k", None) != 1
            admitted = guard.admit(payload, given, sampled=sampled)
        except RequestError as error:
            req.custom_logit_processor = None
            abort_unstarted(req, str(error))
            return
        except Exception:  # an allowed class's own mistake; this is everybody's thread
            logger.exception("sglang-lp: a processor failed before its request began")
            req.custom_logit_processor = None
            abort_unstarted(req, "the processor failed before the request began")
            return
        req.custom_logit_processor = admitted.payload
        if not isinstance(given, dict):  # SGLang left the request out then
            req.sampling_params = copy.copy(req.sampling_params)
            req.sampling_params.custom_params = given = {"__req__": weakref.proxy(req)}
        custom_params = req.sampling_params.custom_params
        host = SglangHost(custom_params["__req__"], pending)
        host.tokenizer = guard.tokenizer  # SGLang gives its request one only after this hook
        attach_row(custom_params, admitted.processor, admitted.params, host)

    return admit_req


def make_from_str(guard: Guard) -> Any:
    """Return the replacement for ``CustomLogitProcessor.from_str``."""

    def from_str(_cls: type, json_str: str) -> Any:
        """Return an instance of the allowed class; raises ``PayloadRefused`` for any other."""
        return guard.verifier.resolve(json_str)()

    return from_str


def refuse_to_load(*_args: object, **_kwargs: object) -> NoReturn:
    """Stand where SGLang would unpickle a request's payload."""
    raise InstallError("sglang-lp: nothing that a request sends is unpickled in this process")


class NoLoads:
    """Stands in for the ``dill`` module where SGLang keeps it: it writes, and never reads."""

    def __init__(self, dill: Any) -> None:
        self.dumps = dill.dumps
        self.loads = self.load = refuse_to_load
