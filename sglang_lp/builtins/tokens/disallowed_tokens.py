"""Tokens that may never be generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp.params import Parameters, Texts, TokenIds
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.text.banned import banned_texts
from sglang_lp.text.encoding import check_texts, known_ids

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel


class DisallowedTokensLogitsProcessor(LogitProcessor):
    """Set the logits of chosen tokens to ``-inf`` at every step.

    Same as SGLang 0.5.23's class of this name, except that requests of one batch may have
    different lists; there they end the server.

    With ``texts`` it bans every token that holds one, such as an emoji or a line break. A text
    that several tokens spell together comes through; ``BadWordsLogitProcessor`` bans that, too.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    needs = History.NONE
    example: ClassVar[Mapping[str, Any]] = {"texts": ["😀", "\u2014"]}

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            token_ids: Ids in ``[0, vocab)``; none at all does nothing.
            texts: Texts of up to 256 characters, together up to 32,768 bytes of UTF-8.
        """

        token_ids: TokenIds | None = None
        texts: Texts | None = None

        def __post_init__(self) -> None:
            """Refuse nothing to ban."""
            if self.texts is not None:
                check_texts("texts", self.texts)
            elif self.token_ids is None:
                raise ValueError("token_ids: expected these, or texts")

    @classmethod
    def fit_params(cls, params: Parameters, served: ServedModel) -> Parameters:
        """Add the tokens of the served model that hold a text."""
        given: Any = params
        if given.texts is None:
            return super().fit_params(params, served)
        banned = banned_texts(cls.__name__, "texts", served.tokenizer, given.texts)
        found = known_ids(banned.always, served.vocab_size or 1 << 31)
        fitted: Parameters = msgspec.structs.replace(
            given, texts=None, token_ids=(*(given.token_ids or ()), *found)
        )
        return fitted

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the request's tokens."""
        edits.ban(request.params.token_ids)
