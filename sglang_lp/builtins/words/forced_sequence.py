"""An answer that begins with a given text or given tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp.builtins.phase import AnswerParams
from sglang_lp.params import FewTokenIds, ForcedText, Parameters, TokenIds
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.text.encoding import check_texts, forced_text
from sglang_lp.text.vocabulary import byte_runs_of

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel


class ForcedSequenceLogitProcessor(LogitProcessor):
    """Force the answer to begin with a given text, or a given sequence of tokens.

    A stop condition of the request, such as ``max_new_tokens``, still ends it earlier.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    needs = History.POSITION
    example: ClassVar[Mapping[str, Any]] = {"text": "Sure, here is the list:\n"}

    class Params(AnswerParams, frozen=True):
        """The parameters of a request.

        Attributes:
            text: The text, of up to 4,096 characters, in the tokens that the served tokenizer
                writes it with. Give ``text`` or ``token_ids``.
            token_ids: The sequence.
            eos_token_ids: Tokens that end the answer; one of them comes after the sequence. Left
                out: the model continues freely.
        """

        renamed: ClassVar[Mapping[str, str]] = {"eos_token_id": "eos_token_ids"}

        text: ForcedText | None = None
        token_ids: TokenIds | None = None
        eos_token_ids: FewTokenIds | None = None

        def __post_init__(self) -> None:
            """Refuse a request with neither text nor tokens, and with both."""
            if self.text is not None:
                check_texts("text", [self.text])
            if (self.text is None) == (self.token_ids is None):
                raise ValueError("token_ids: expected either token_ids or text")

    @classmethod
    def fit_params(cls, params: Parameters, served: ServedModel) -> Parameters:
        """Turn the text into tokens of the served model."""
        given: Any = params
        if given.text is None:
            return super().fit_params(params, served)
        token_ids = forced_text(
            cls.__name__, "text", served.tokenizer, given.text, served.vocab_size
        )
        fitted: Parameters = msgspec.structs.replace(given, text=None, token_ids=token_ids)
        return fitted

    def edit(self, request: Request, edits: Edits) -> None:
        """Force the next token of the sequence, then the end."""
        token_ids, eos = request.params.token_ids, request.params.eos_token_ids
        if request.position < len(token_ids):
            edits.force(token_ids[request.position])
        elif eos is None:
            runs = byte_runs_of(request.tokenizer)
            if request.position == len(token_ids) and (banned := runs.corrupting(token_ids)):
                edits.ban(banned)
            else:
                edits.rest()
        elif len(eos) == 1:
            edits.force(eos[0])
        else:
            edits.allow_only(eos)

    def foresee(self, request: Request) -> Iterator[int]:
        """Name the rest of the sequence, and the end."""
        token_ids, eos = request.params.token_ids, request.params.eos_token_ids
        for position in range(request.position, len(token_ids)):
            yield token_ids[position]
        if eos is not None and len(eos) == 1:
            yield eos[0]

    def explain(self, request: Request) -> str:
        """Say which token of the sequence comes next."""
        position, length = request.position, len(request.params.token_ids)
        return f"token {position + 1} of {length}" if position < length else "the sequence is over"
