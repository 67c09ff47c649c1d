"""A request at one decoding step, as its processor sees it: parameters, exact history, state."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeVar

    _Params = TypeVar("_Params", default=Any)
    _State = TypeVar("_State", default=Any)
else:
    from typing import TypeVar

    _Params, _State = TypeVar("_Params"), TypeVar("_State")

__all__ = ["Answer", "History", "Request"]

_NO_TOKENS: Sequence[int] = array("q")


class History(IntEnum):
    """How much of the generated tokens a processor needs."""

    #: Nothing: the edits are the same at every step, so ``edit`` is called once.
    NONE = 0
    #: The number of generated tokens (``request.position``).
    POSITION = 1
    #: Every generated token. The default.
    TOKENS = 2


class Answer(Protocol):
    """The answer to a question about the logits of a step: true or false.

    On a GPU the device knows the answer first. :meth:`~sglang_lp.edits.Edits.force_if` takes it
    without a wait. Where Python needs its truth (``if``, ``not``, ``and``) the host waits for the
    device: once in a step for all rows that ask about 64 tokens or fewer. An answer can be read
    until ``edit`` returns.
    """

    def __bool__(self) -> bool:
        """Wait for the device, and return the answer."""


class Request(Generic[_Params, _State]):
    """The parameters, history and state of one request.

    ``Request[Params, int]`` in an annotation tells editors and type checkers the types of
    ``params`` and ``state``.

    Attributes:
        params: The processor's parsed ``Params``. Not set (``None``) for a class without a schema.
        prompt_ids: Token ids of the prompt. For an image request they include SGLang's pad
            values of 1,000,000 and more, which are no token ids of the model.
        output_ids: Token ids generated so far, oldest first. Neither change nor keep the sequence:
            it grows with the request.
        position: Number of tokens generated before the token that is sampled now, always exact.
        exact: Whether ``output_ids`` holds all ``position`` tokens. Always true with the server
            plugin for ``History.TOKENS``. The newest token may be missing on a stock server with
            overlap scheduling, and for ``History.POSITION``.
        may_lag: Whether ``exact`` may be false at some step: the server runs no plugin.
        state: The state that ``start`` returned. Lives and dies with the request.
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

    def __init__(self, params: Any, *, may_lag: bool = False, tokenizer: Any = None) -> None:
        self.params: _Params = params
        self.prompt_ids: Sequence[int] = _NO_TOKENS
        self.output_ids: Sequence[int] = _NO_TOKENS
        self.position = 0
        self.exact = True
        self.may_lag = may_lag
        # "start" returns the state before the first method reads it.
        self.state: _State = None  # type: ignore[assignment]
        self.tokenizer = tokenizer

    @property
    def logits(self) -> torch.Tensor:
        """The row of logits of this step, shape ``(vocab,)``: a copy, written back after ``edit``.

        Change it in place. ``edits`` are cheaper: before rows are written back, the host waits for
        the device once, to check that each has a finite logit and no NaN.

        Raises:
            AttributeError: Read outside ``edit``.
        """
        raise outside_edit()

    def top(self, count: int) -> list[int]:  # noqa: ARG002 - there are no logits here
        """Return the ids of the ``count`` largest logits of this step, largest first.

        Which of several equal logits comes first depends on the device and on the batch.
        The host waits for the device: once in a step for all rows that read 64 or fewer. Tokens
        that are masked (``-inf``) are left out.

        Raises:
            AttributeError: Read outside ``edit``.
        """
        raise outside_edit()

    def is_among_top(self, token_ids: Iterable[int], count: int) -> Answer:  # noqa: ARG002
        """Return whether one of these tokens is among the ``count`` likeliest of this step.

        A token is among them if fewer than ``count`` logits are larger than its logit, so tokens
        that share the last place all are. A masked token (``-inf``) never is, and no token of a
        row with NaN. On a GPU the host does not wait if the answer goes to
        :meth:`~sglang_lp.edits.Edits.force_if`.

        Args:
            token_ids: Ids in ``[0, vocab)``, at least one.
            count: 1 or more.

        Raises:
            AttributeError: Read outside ``edit``.
            ProcessorFault: No id, an id outside the vocabulary, or a ``count`` below 1.
        """
        raise outside_edit()


def outside_edit() -> AttributeError:
    """Return the error of reading logits where no step lends them."""
    return AttributeError(
        "request.logits can only be read inside edit(), and not by a processor with "
        "needs = History.NONE, whose edits do not depend on the step"
    )
