"""One request as its processor sees it at one decoding step: exact history, parameters, state.

The history is read from SGLang's own request object, never counted: how often the sampler runs
says nothing (chunked prefill samples results that are thrown away, retraction runs a request
again). State is fed from that history and can always be rebuilt from it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.params import Parameters
    from sglang_lp.processor import LogitProcessor

__all__ = ["NEVER", "History", "Request"]

#: A clock reading that never comes.
NEVER = 1 << 62

_serials = count(1)
_NO_TOKENS: Sequence[int] = array("q")


class History(IntEnum):
    """What a processor must know of the tokens generated so far.

    SGLang's overlap scheduler samples a step before the previous token is in the history. The
    server plugin therefore delays sampling, for exactly the batches that hold a processor that
    needs ``TOKENS``.
    """

    #: Nothing: its edits are the same at every step, so ``edit`` is called once.
    NONE = 0
    #: How many tokens were generated (``request.position``), not which.
    POSITION = 1
    #: Every token. The default.
    TOKENS = 2


class Request:
    """What a processor may know of one request; made once per request, refreshed at each step.

    Attributes:
        params: The processor's parsed ``Params``.
        prompt_ids: Token ids of the prompt. For an image request these include SGLang's pad
            values of 1,000,000 and more, which are no token ids of the model.
        output_ids: Token ids generated so far, oldest first. SGLang's own array: do not change.
        position: How many tokens were generated before the one to be sampled now, always exact.
        exact: Whether ``output_ids`` holds all ``position`` tokens. Always true with the server
            plugin; on a stock server with overlap scheduling the newest one is missing.
        may_lag: Whether ``exact`` may be false at some step: the server runs no plugin.
        state: What ``start`` returned. Lives and dies with the request.
    """

    __slots__ = (
        "__weakref__",
        "_fed",
        "_fixed",
        "_last",
        "_logits",
        "_row",
        "_started",
        "_wake",
        "exact",
        "may_lag",
        "output_ids",
        "params",
        "position",
        "processor",
        "prompt_ids",
        "serial",
        "sglang_req",
        "state",
    )

    def __init__(
        self,
        processor: LogitProcessor,
        params: Parameters | None,
        sglang_req: Any,
        *,
        may_lag: bool | None = None,
    ) -> None:
        self.processor = processor
        self.params: Any = params
        self.prompt_ids: Sequence[int] = _NO_TOKENS
        self.output_ids: Sequence[int] = _NO_TOKENS
        self.position = 0
        self.exact = True
        # A request without SGLang's bookkeeping is a test's, and holds its whole history.
        self.may_lag = (
            hasattr(sglang_req, "kv") or hasattr(sglang_req, "kv_committed_len")
            if may_lag is None
            else may_lag
        )
        self.state: Any = None
        #: Tells apart requests whose objects happen to reuse one address.
        self.serial = next(_serials)
        self.sglang_req = sglang_req
        self._started = False
        self._fed = 0
        self._last: int | None = None
        #: Clock reading of the batch before which this row needs no look.
        self._wake = 0
        #: Edits that are the same at every step, once known.
        self._fixed: Edits | None = None
        self._row: torch.Tensor | None = None
        self._logits: torch.Tensor | None = None

    @property
    def tokenizer(self) -> Any:
        """The served model's tokenizer, or ``None`` (``--skip-tokenizer-init``, a unit test)."""
        return getattr(self.sglang_req, "tokenizer", None)

    @property
    def logits(self) -> torch.Tensor:
        """The row of logits of this step, shape ``(vocab,)``: a copy, written back if changed.

        Change it in place. It goes back into the batch once it is known to hold a finite logit
        and no NaN, for which the host waits for the device; ``edits`` are cheaper.
        """
        if self._row is None:
            raise AttributeError("request.logits can only be read inside edit()")
        if self._logits is None:
            self._logits = self._row.clone()
        return self._logits

    def observe(self) -> bool:
        """Read the history anew.

        Returns:
            False if the result of this step will be thrown away (a chunk of a prefill that is
            not its last), so that there is nothing to edit.
        """
        req = self.sglang_req
        if req is None:
            return True
        output_ids = req.output_ids
        prompt_ids = req.origin_input_ids
        seen = len(output_ids)
        try:
            self.position = position = req.kv.kv_committed_len - len(prompt_ids)
        except AttributeError:
            committed = getattr(req, "kv_committed_len", None)  # SGLang 0.5.18
            self.position = position = (
                seen if committed is None else committed - len(prompt_ids)
            )
        if position < seen:
            return False
        self.exact = position == seen
        if prompt_ids is not self.prompt_ids or output_ids is not self.output_ids:
            self._adopt(prompt_ids, output_ids)
        return True

    def catch_up(self) -> None:
        """Start the state if need be, and feed it every token that it has not seen, once."""
        output_ids = self.output_ids
        fed, seen = self._fed, len(output_ids)
        if self._started and (
            fed > seen or (fed and output_ids[fed - 1] != self._last)  # rewritten history
        ):
            self._started = False
        if not self._started:
            self._fed = fed = 0
            self.state = self.processor.start(self)
            self._started = True
        if seen > fed:
            self.processor.advance(self, output_ids[fed:seen])
            self._fed = seen
            self._last = output_ids[seen - 1]

    def _adopt(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        """Take over new sequence objects; the state stays only if they extend the old ones."""
        fed = self._fed
        if self._started and (
            len(output_ids) < fed
            or output_ids[:fed] != self.output_ids[:fed]
            or (prompt_ids is not self.prompt_ids and list(prompt_ids) != list(self.prompt_ids))
        ):
            self._started = False
        self.prompt_ids = prompt_ids
        self.output_ids = output_ids
