"""One request as its processor sees it at one decoding step: parameters, exact history, state."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.params import Parameters

__all__ = ["History", "Request"]

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
    """What a processor may know of one request.

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
        tokenizer: The served model's, or ``None`` (``--skip-tokenizer-init``, a unit test).
        lent: While ``edit`` runs: the step's edits, which know the batch's logits and which row
            is this request's. Set by the batch; a processor reads ``logits``.
        copied: The copy of that row, if it was asked for.
    """

    __slots__ = (
        "__weakref__",
        "copied",
        "exact",
        "lent",
        "may_lag",
        "output_ids",
        "params",
        "position",
        "prompt_ids",
        "state",
        "tokenizer",
    )

    def __init__(
        self, params: Parameters | None, *, may_lag: bool = False, tokenizer: Any = None
    ) -> None:
        self.params: Any = params
        self.prompt_ids: Sequence[int] = _NO_TOKENS
        self.output_ids: Sequence[int] = _NO_TOKENS
        self.position = 0
        self.exact = True
        self.may_lag = may_lag
        self.state: Any = None
        self.tokenizer = tokenizer
        self.lent: Edits | None = None
        self.copied: torch.Tensor | None = None

    @property
    def logits(self) -> torch.Tensor:
        """The row of logits of this step, shape ``(vocab,)``: a copy, written back after ``edit``.

        Change it in place. It goes back into the batch once it is known to hold a finite logit
        and no NaN, for which the host waits for the device; ``edits`` are cheaper.

        Raises:
            AttributeError: Read outside ``edit``.
        """
        if self.lent is None:
            raise AttributeError(
                "request.logits can only be read inside edit(), and not by a processor with "
                "needs = History.NONE, whose edits do not depend on the step"
            )
        if self.copied is None:
            self.copied = self.lent.open_logits.clone()
        return self.copied

    def top(self, count: int) -> list[int]:
        """Return the ids of the ``count`` largest logits of this step, largest first.

        The host waits for the device; nothing is copied or written back. Tokens that are masked
        already (``-inf``) are left out.

        Raises:
            AttributeError: Read outside ``edit``.
        """
        if self.copied is not None or self.lent is None:
            logits = self.logits
        else:
            logits = self.lent.open_logits
        if count == 1:  # half the time of topk on a CPU
            values, ids = logits.max(0, keepdim=True)
        else:
            values, ids = logits.topk(min(count, logits.shape[0]))
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        return [token_id for token_id, value in pairs if value > -math.inf]
