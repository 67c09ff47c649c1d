"""A temperature for one phase of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.edits import MAX_FACTOR
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

_Temperature = Annotated[float, Meta(ge=0.01, le=100)]


class TemperatureLogitProcessor(LogitProcessor):
    """Sample one phase of the answer at a temperature of its own.

    ``temperature`` takes the place of the request's: with ``where="answer"`` and a temperature of
    0.3 the model thinks at the request's temperature and answers at 0.3. Two of them in a chain
    give each phase its own; where several hold at once, the lowest counts.

    ``top_k``, ``top_p`` and ``min_p`` select tokens after this temperature, and ``logprobs`` are
    those at this temperature, as with the request's. Penalties and ``logit_bias`` come before it.

    It changes nothing for a request with ``temperature`` 0 or ``top_k`` 1, which is greedy: set the
    request's ``temperature`` above 0 to sample one phase. A beam search is scored at this
    temperature, whatever the request's.

    SGLang divides the logits by the request's temperature afterwards, so this processor multiplies
    them by the ratio of the two temperatures, within 0.001 to 1,000.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    needs = History.NONE
    example: ClassVar[Mapping[str, Any]] = {"temperature": 0.3, "where": "answer"}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            temperature: The temperature, in place of the request's.
        """

        temperature: _Temperature

    def edit(self, request: Request, edits: Edits) -> None:
        """Scale the logits, unless the request is greedy."""
        sampling = getattr(request, "sampling", None)
        given = getattr(sampling, "temperature", 1.0)
        if (getattr(sampling, "beam_width", None) or 1) > 1:
            given = 1.0  # SGLang scores beams without it
        elif getattr(sampling, "top_k", None) == 1:
            return
        factor = given / request.params.temperature
        edits.scale(max(1 / MAX_FACTOR, min(MAX_FACTOR, factor)))
