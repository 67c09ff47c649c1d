"""Tokens that may never be generated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.params import Parameters, Texts, TokenIds
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.served_model import shows_ends
from sglang_lp.text.banned import banned_texts
from sglang_lp.text.encoding import check_texts, known_ids, require_tokenizer
from sglang_lp.text.vocabulary import unmapped_ids

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel


class DisallowedTokensLogitsProcessor(LogitProcessor):
    """Set the logits of chosen tokens to ``-inf`` at every step.

    It has the same effect as SGLang 0.5.23's class of this name, with one exception: requests of
    one batch may have different lists, which end the server in SGLang.

    With ``texts`` it bans every token that contains one of them, such as an emoji or a line break,
    and every special token whose name contains one. End tokens stay allowed, because SGLang takes
    their names off the answer, unless the request keeps them (``ignore_eos``, ``no_stop_trim``).
    A text that several tokens spell together is not banned; ``BadWordsLogitProcessor`` bans it.

    With ``unmapped`` it bans the ids with which a model pads its vocabulary: they are no token of
    the tokenizer and spell nothing, but can be sampled.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    needs = History.NONE
    example: ClassVar[Mapping[str, Any]] = {"texts": ["😀", "\u2014"]}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            token_ids: Ids in ``[0, vocab)``; an empty list does nothing.
            texts: Texts of up to 256 characters, together up to 32,768 bytes of UTF-8.
            unmapped: Whether to ban the ids that are no token of the served tokenizer, except end
                tokens.
        """

        token_ids: TokenIds | None = None
        texts: Texts | None = None
        unmapped: bool = False

        def __post_init__(self) -> None:
            """Refuse nothing to ban."""
            if self.texts is not None:
                check_texts("texts", self.texts)
            elif self.token_ids is None and not self.unmapped:
                raise ValueError("token_ids: expected token_ids, texts or unmapped, got none")

    class Fitted(Params, frozen=True):
        """The parameters, with the end tokens that are banned where a client gets their names."""

        shown_ends: tuple[int, ...] = ()

    @classmethod
    def fit_params(cls, params: Parameters, served: ServedModel) -> Parameters:
        """Add the tokens of the served model that contain a text, and the ids that are no token."""
        given: Any = params
        token_ids: list[int] = [*(given.token_ids or ())]
        changes: dict[str, Any] = {}
        ends: list[int] = []
        if given.texts is not None:
            # The last one reads the names of special tokens.
            banned = banned_texts(cls.__name__, "texts", served.tokenizer, given.texts)[-1]
            found = known_ids(banned.always, served.vocab_size or 1 << 31)
            ends = [token_id for token_id in found if token_id in served.eos_token_ids]
            token_ids += [token_id for token_id in found if token_id not in ends]
            changes["texts"] = None
        if given.unmapped:
            require_tokenizer(cls.__name__, "unmapped", served.tokenizer)
            if served.vocab_size is not None:  # else only the server can tell
                unmapped = unmapped_ids(served.tokenizer, served.vocab_size)
                token_ids += [i for i in unmapped if i not in served.eos_token_ids]
                changes["unmapped"] = False
        if not changes:
            return super().fit_params(params, served)
        changes["token_ids"] = (*token_ids,)
        if ends:
            kept = {name: getattr(given, name) for name in given.__struct_fields__}
            return cls.Fitted(**{**kept, **changes, "shown_ends": (*ends,)})
        fitted: Parameters = msgspec.structs.replace(given, **changes)
        return fitted

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban the request's tokens."""
        edits.ban(request.params.token_ids)
        if shows_ends(getattr(request, "sampling", None)):
            edits.ban(getattr(request.params, "shown_ends", ()))
