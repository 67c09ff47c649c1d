"""One request as its processor sees it at one decoding step: parameters, exact history, state."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from sglang_lp.params import Parameters

__all__ = ["Answer", "History", "Request"]

_NO_TOKENS: Sequence[int] = array("q")


class History(IntEnum):
    """What a processor must know of the tokens generated so far."""

    #: Nothing: its edits are the same at every step, so ``edit`` is called once.
    NONE = 0
    #: How many tokens were generated (``request.position``), not which.
    POSITION = 1
    #: Every token. The default.
    TOKENS = 2


class Answer(Protocol):
    """What a question about the logits of a step comes to: true or false.

    On a GPU the device knows it first. Hand it to
    :meth:`~sglang_lp.edits.Edits.force_if` and nobody waits; where Python asks for its truth
    (``if``, ``not``, ``and``), the host waits for the device, once in a step for all rows that ask
    about no more than 64 tokens. Its truth can be asked for until ``edit`` returns.
    """

    def __bool__(self) -> bool:
        """Wait for it, and tell."""


class Request:
    """What a processor may know of one request.

    Attributes:
        params: The processor's parsed ``Params``.
        prompt_ids: Token ids of the prompt. For an image request these include SGLang's pad
            values of 1,000,000 and more, which are no token ids of the model.
        output_ids: Token ids generated so far, oldest first. Do not change it, and do not keep it:
            it grows with the request.
        position: How many tokens were generated before the one to be sampled now, always exact.
        exact: Whether ``output_ids`` holds all ``position`` tokens. With the server plugin always
            true for a processor that needs the tokens; on a stock server with overlap scheduling,
            and for one that needs the position alone, the newest one may be missing.
        may_lag: Whether ``exact`` may be false at some step: the server runs no plugin.
        state: What ``start`` returned. Lives and dies with the request.
        tokenizer: The served model's, or ``None`` (``--skip-tokenizer-init``, a unit test).
    """

    __slots__ = (
        "__weakref__",
        "exact",
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

    @property
    def logits(self) -> torch.Tensor:
        """The row of logits of this step, shape ``(vocab,)``: a copy, written back after ``edit``.

        Change it in place. It goes back into the batch once it is known to hold a finite logit
        and no NaN, for which the host waits for the device, once for all rows; ``edits`` are
        cheaper.

        Raises:
            AttributeError: Read outside ``edit``.
        """
        raise _outside_edit()

    def top(self, count: int) -> list[int]:  # noqa: ARG002 - there are no logits here
        """Return the ids of the ``count`` largest logits of this step, largest first.

        The host waits for the device, once in a step for all rows that read no more than 64.
        Tokens that are masked already (``-inf``) are left out.

        Raises:
            AttributeError: Read outside ``edit``.
        """
        raise _outside_edit()

    def is_among_top(self, token_ids: Iterable[int], count: int) -> Answer:  # noqa: ARG002
        """Tell whether one of these tokens is among the ``count`` likeliest of this step.

        It is if fewer than ``count`` logits are larger than its own, so all tokens that share the
        last place are among them; one that is masked already (``-inf``) is not. Takes a tenth of
        the time of :meth:`top` on a CPU. On a GPU nobody waits if the answer goes to
        :meth:`~sglang_lp.edits.Edits.force_if`.

        Args:
            token_ids: Ids in ``[0, vocab)``, at least one.
            count: 1 or more.

        Raises:
            AttributeError: Read outside ``edit``.
            ProcessorFault: No id, one outside the vocabulary, or no ``count``.
        """
        raise _outside_edit()


def _outside_edit() -> AttributeError:
    return AttributeError(
        "request.logits can only be read inside edit(), and not by a processor with "
        "needs = History.NONE, whose edits do not depend on the step"
    )
