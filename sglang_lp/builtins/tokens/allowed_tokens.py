"""The only tokens that may be generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp.builtins.phase import AnswerParams
from sglang_lp.errors import InvalidParameter, shown
from sglang_lp.params import NonEmptyTokenIds, Parameters, Texts
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.text.encoding import check_texts, served_vocabulary

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel


class AllowedTokensLogitProcessor(LogitProcessor):
    """Set the logits of all tokens but the chosen ones to ``-inf`` at every step.

    The chosen tokens keep their logits. ``texts`` chooses the tokens that spell exactly one of the
    texts, and the end tokens of the served model. With ``token_ids`` only, include an end token if
    the model is to end its answer before ``max_new_tokens``, as with ``allowed_token_ids`` in vLLM.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    needs = History.NONE
    example: ClassVar[Mapping[str, Any]] = {"texts": ["yes", "no"]}

    class Params(AnswerParams, frozen=True):
        """The parameters of a request.

        Attributes:
            token_ids: Ids in ``[0, vocab)``, at least one.
            texts: Texts of up to 256 characters, together up to 32,768 bytes of UTF-8, each a
                token of the served model as it is. ``ChoiceLogitProcessor`` takes longer ones.
        """

        token_ids: NonEmptyTokenIds | None = None
        texts: Texts | None = None

        def __post_init__(self) -> None:
            """Refuse nothing to allow."""
            if self.texts is not None:
                check_texts("texts", self.texts)
            elif self.token_ids is None:
                raise ValueError("texts: expected texts or token_ids, got neither")

    @classmethod
    def fit_params(cls, params: Parameters, served: ServedModel) -> Parameters:
        """Add the tokens of the served model that are a text, and its end tokens.

        Raises:
            InvalidParameter: No token is a text, or the bytes of the tokens are unknown.
        """
        given: Any = params
        if given.texts is None:
            return super().fit_params(params, served)
        pieces = served_vocabulary(cls.__name__, "texts", served.tokenizer).named.exact
        limit = served.vocab_size or len(pieces.of)  # tokenizers may have more
        found = {*(given.token_ids or ()), *served.eos_token_ids}
        for text in given.texts:
            ids = [token_id for token_id in pieces.same_as(text.encode()) if token_id < limit]
            if not ids:
                raise InvalidParameter(
                    cls.__name__,
                    "texts",
                    f"expected texts that are one token of the served model each, got "
                    f"{shown(text)}, which is none; for texts of several tokens use "
                    "ChoiceLogitProcessor",
                )
            found.update(ids)
        fitted: Parameters = msgspec.structs.replace(
            given, texts=None, token_ids=tuple(sorted(found))
        )
        return fitted

    def edit(self, request: Request, edits: Edits) -> None:
        """Allow the request's tokens only."""
        edits.allow_only(request.params.token_ids)
