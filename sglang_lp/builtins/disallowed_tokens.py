"""Tokens that may never be generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.params import Parameters, TokenIds
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class DisallowedTokensLogitsProcessor(LogitProcessor):
    """Set the logits of chosen tokens to ``-inf`` at every step.

    Same as SGLang 0.5.23's class of this name, except that requests of one batch may have
    different lists; there they end the server.
    """

    __module__ = "sglang_lp.builtins"
    needs = History.NONE
    example: ClassVar[Mapping[str, Any]] = {"token_ids": [1234, 567]}

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            token_ids: Ids in ``[0, vocab)``; none at all does nothing.
        """

        token_ids: TokenIds

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the request's tokens."""
        edits.ban(request.params.token_ids)
