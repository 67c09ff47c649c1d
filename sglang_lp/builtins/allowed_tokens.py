"""The only tokens that may be generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.params import NonEmptyTokenIds, Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class AllowedTokensLogitProcessor(LogitProcessor):
    """Set the logits of all tokens but the chosen ones to ``-inf`` at every step.

    The chosen ones keep their logits. An end-of-sequence token must be among them if the model
    is to end its answer before ``max_new_tokens``. The same as ``allowed_token_ids`` in vLLM.
    """

    __module__ = "sglang_lp.builtins"
    needs = History.NONE
    example: ClassVar[Mapping[str, Any]] = {"token_ids": [15, 16, 17, 18, 19]}

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            token_ids: Ids in ``[0, vocab)``, at least one.
        """

        token_ids: NonEmptyTokenIds

    def edit(self, request: Request, edits: Edits) -> None:
        """Allow the request's tokens only."""
        edits.allow_only(request.params.token_ids)
