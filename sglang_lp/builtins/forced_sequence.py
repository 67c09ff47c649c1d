"""An answer that is given token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lp.params import Parameters, TokenId, TokenIds
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class ForcedSequenceLogitProcessor(LogitProcessor):
    """Force the first generated tokens to be a given sequence.

    A stop condition of the request, such as ``max_new_tokens``, still ends it earlier.
    """

    __module__ = "sglang_lp.builtins"
    needs = History.POSITION

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            token_ids: The sequence.
            eos_token_id: Forced after it, to end the answer. Left out: the model goes on by
                itself.
        """

        token_ids: TokenIds
        eos_token_id: TokenId | None = None

    def edit(self, request: Request, edits: Edits) -> None:
        """Force the token whose turn it is."""
        token_ids = request.params.token_ids
        if request.position < len(token_ids):
            edits.force(token_ids[request.position])
        elif request.params.eos_token_id is not None:
            edits.force(request.params.eos_token_id)
        else:
            edits.rest()
