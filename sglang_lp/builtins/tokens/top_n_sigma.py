"""Top-n-sigma sampling: only tokens whose logit is near the largest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

_Sigmas = Annotated[float, Meta(gt=0, le=100)]


class TopNSigmaLogitProcessor(LogitProcessor):
    """Keep only tokens whose logit is near the largest: top-n-sigma sampling.

    A token stays if its logit is at least ``max - top_n_sigma * deviation``, with the largest logit
    and the standard deviation (of the population) of the step's logits. The method is that of
    Tang, Liu, Xu and Huang, "Top-n-sigma: Not All Logits Are You Need", 2024 (arXiv:2411.07641).

    The set of tokens does not depend on the temperature, unlike that of ``top_p`` and ``min_p``,
    so a high temperature brings variety without noise. The likeliest token always stays: greedy
    answers are the same.

    It comes after everything else that edits the logits, in a chain as well: excluded tokens do not
    count for the deviation, and a forced token stays. SGLang applies temperature, ``top_k``,
    ``top_p`` and ``min_p`` after it, to the tokens that are left; leave these at their defaults
    where top-n-sigma is to decide.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    needs = History.NONE
    example: ClassVar[Mapping[str, Any]] = {"top_n_sigma": 1.0}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            top_n_sigma: How many standard deviations below the largest logit a token may be. A
                smaller number leaves fewer tokens; the paper's default is 1.
        """

        top_n_sigma: _Sigmas = 1.0

    def edit(self, request: Request, edits: Edits) -> None:
        """Exclude the tokens far below the largest logit."""
        edits.keep_near_top(request.params.top_n_sigma)
