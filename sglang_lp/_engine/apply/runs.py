"""What the engine runs: a processor, as far as the engine knows it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.request import History, Request

__all__ = ["Processor", "Whole"]


class Processor(Protocol):
    """The part of :class:`sglang_lp.processor.LogitProcessor` that the engine calls.

    Attributes:
        needs: What it must know of the tokens.
        tolerates_lag: Whether it copes with a history that lacks the newest token.
        dense: Whether it computes on whole rows, or runs others that do.
        edits: Whether :meth:`edit` is called.
        early: Whether it can be asked for its first edits before their step.
        reads_prompt: Whether :meth:`start` reads the whole prompt.
    """

    needs: History
    tolerates_lag: bool
    early: bool
    reads_prompt: bool
    dense: bool
    edits: bool

    @property
    def name(self) -> str:
        """Class name, for messages."""

    @property
    def kind(self) -> type:
        """The class whose rows may share one call of ``compute``."""

    def start(self, request: Request) -> Any:
        """Return the state before the first generated token."""

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Take in generated tokens."""

    def fork(self, request: Request) -> Any:
        """Return a state that can be advanced along a draft and thrown away."""

    def edit(self, request: Request, edits: Edits) -> None:
        """Say what happens to the next token."""

    def foresee(self, request: Request) -> Iterable[int]:
        """Return the tokens that it will force from the next one on."""

    def report(
        self,
        params: Any,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        forced: Sequence[Sequence[int]],
    ) -> dict[str, Any]:
        """Return what a finished answer says of it."""

    def wholes(self, request: Request, custom_params: Any) -> Sequence[Whole]:
        """Return what computes on the whole row of a request, in order, if ``dense``."""

    def compute(
        self, logits: torch.Tensor, requests: Sequence[Request], custom_params: Sequence[Any]
    ) -> torch.Tensor:
        """Compute whole rows."""

    def rewind(self, request: Request) -> None:
        """Prepare for the same position once more."""


class Whole(NamedTuple):
    """A processor that computes on the whole row of a request.

    Attributes:
        processor: The processor.
        request: As it sees it.
        custom_params: As it reads them.
    """

    processor: Processor
    request: Request
    custom_params: Any
