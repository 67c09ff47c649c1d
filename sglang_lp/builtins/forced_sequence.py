"""An answer that begins with given tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.params import FewTokenIds, Parameters, TokenIds
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
    example: ClassVar[Mapping[str, Any]] = {"token_ids": [1234, 567], "eos_token_ids": [2]}

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            token_ids: The sequence.
            eos_token_ids: Tokens that end the answer; one of them comes after the sequence. Left
                out: the model goes on by itself.
        """

        renamed: ClassVar[Mapping[str, str]] = {"eos_token_id": "eos_token_ids"}

        token_ids: TokenIds
        eos_token_ids: FewTokenIds | None = None

    def edit(self, request: Request, edits: Edits) -> None:
        """Force the next token of the sequence, then the end."""
        token_ids, eos = request.params.token_ids, request.params.eos_token_ids
        if request.position < len(token_ids):
            edits.force(token_ids[request.position])
        elif eos is None:
            edits.rest()
        elif len(eos) == 1:
            edits.force(eos[0])
        else:
            edits.allow_only(eos)
