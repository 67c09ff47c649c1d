"""A bias or a ban that depends on the position in the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.edits import MAX_BIAS, NEVER
from sglang_lp.params import FewTokenIds, NonNegativeInt, OrNoLimit, PositiveInt
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

Bias = Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]


class ScheduledBiasLogitProcessor(LogitProcessor):
    """Add to the logits of chosen tokens, or ban them, between two positions of the answer.

    The bias is constant from ``start`` up to ``end``, or changes linearly from ``bias`` at the
    first position to ``final_bias`` at the last. Without ``bias`` the tokens are banned there. For
    several schedules in one request, chain several of these processors.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    needs = History.POSITION
    example: ClassVar[Mapping[str, Any]] = {
        "token_ids": [2],
        "bias": 0.0,
        "final_bias": 8.0,
        "start": 200,
        "end": 400,
    }

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            token_ids: Ids in ``[0, vocab)``, at least one, none of them twice.
            bias: Added to each of their logits. Left out: the tokens are banned.
            final_bias: Bias at the last position, ``end - 1``; needs ``bias`` and ``end``. Left
                out: ``bias`` stays the same.
            start: First position, in generated tokens: 0 is the first token.
            end: Position before which the schedule ends. Left out: it does not end.
        """

        token_ids: FewTokenIds
        bias: Bias | None = None
        final_bias: Bias | None = None
        start: NonNegativeInt = 0
        end: OrNoLimit[PositiveInt] = None

        def __post_init__(self) -> None:
            """Refuse a schedule that is empty or contradicts itself."""
            if len({*self.token_ids}) < len(self.token_ids):
                raise ValueError("token_ids: expected each id once, got one of them twice")
            if self.end is not None and self.end <= self.start:
                raise ValueError(
                    f"end: expected more than start, which is {self.start}, got {self.end}"
                )
            if self.final_bias is not None and (self.bias is None or self.end is None):
                raise ValueError("final_bias: expected bias and end with it, to run between them")

        def bias_at(self, position: int) -> float | None:
            """Return the bias at a position of the schedule, ``None`` for a ban."""
            if self.bias is None or self.final_bias is None or self.end is None:
                return self.bias
            steps = self.end - 1 - self.start
            if not steps:
                return self.bias
            return self.bias + (self.final_bias - self.bias) * (position - self.start) / steps

    def serving(self, params: Any) -> Self:
        """Return a processor that knows whether it bans or biases."""
        made = type(self)()
        made.exclusion_only = params.bias is None
        return made

    def edit(self, request: Request, edits: Edits) -> None:
        """Apply the bias of this position, or sleep until the schedule starts."""
        params, position = request.params, request.position
        if position < params.start:
            edits.wake_at(params.start)
        elif params.end is not None and position >= params.end:
            edits.rest()
        else:
            bias = params.bias_at(position)
            if bias is None:
                edits.ban(params.token_ids)
            elif bias:
                edits.bias(params.token_ids, bias)
            if params.final_bias is None:
                edits.hold_until(NEVER if params.end is None else params.end)

    def explain(self, request: Request) -> str:
        """Say at which positions the schedule runs."""
        params = request.params
        upto = "" if params.end is None else f" up to {params.end}"
        return f"from position {params.start}{upto}"
