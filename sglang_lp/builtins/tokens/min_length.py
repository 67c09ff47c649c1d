"""A minimum length of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.params import FewTokenIds, Parameters, PositiveInt
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel, ends_for

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class MinLengthLogitProcessor(LogitProcessor):
    """Keep the end-of-sequence tokens out of the first ``min_tokens`` generated tokens.

    The answer may end from the next token on. SGLang's own ``min_new_tokens`` bans the end tokens
    that the server knows; this processor takes any tokens, such as the end of a thinking block.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    needs = History.POSITION
    example: ClassVar[Mapping[str, Any]] = {"min_tokens": 100}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            min_tokens: Number of generated tokens without any of ``eos_token_ids``.
            eos_token_ids: Ids in ``[0, vocab)``, at least one. Left out: the end tokens of the
                served model.
        """

        renamed: ClassVar[Mapping[str, str]] = {"end_token_ids": "eos_token_ids"}

        min_tokens: PositiveInt
        eos_token_ids: FewTokenIds | None = None

    @classmethod
    def fit_params(cls, params: Parameters, served: ServedModel) -> Parameters:
        """Fill in the end tokens of the served model if the request names no tokens."""
        given: Any = params
        ends = ends_for(cls.__name__, "eos_token_ids", given.eos_token_ids, served)
        fitted: Parameters = msgspec.structs.replace(given, eos_token_ids=ends)
        return fitted

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the end tokens until the answer is long enough."""
        if request.position < request.params.min_tokens:
            edits.ban(request.params.eos_token_ids)
            edits.hold_until(request.params.min_tokens)
        else:
            edits.rest()

    def explain(self, request: Request) -> str:
        """Say how long the answer has to be."""
        return f"fewer than {request.params.min_tokens} tokens so far"
