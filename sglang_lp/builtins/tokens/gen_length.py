"""A bias on the end of the answer that grows with the length of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.edits import MAX_BIAS
from sglang_lp.errors import InvalidParameter, shown
from sglang_lp.params import Text, TokenId
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ends_for
from sglang_lp.text.encoding import encode, served_vocabulary

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

Bias = Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]
_Ends = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=64)]
Power = Annotated[int, Meta(ge=0, le=8)]

#: Number of tokens at which the bias is ``bias``.
UNIT = 10

#: The ends of a sentence: all stops of languages that do not use the full stop are included.
_STOPS = tuple(stop.encode() for stop in ".!?\n…。！？।۔؟")  # noqa: RUF001 - those are meant
#: Most tokens of a stop: one for each byte.
_LONGEST_STOP = 3


class GenLengthLogitProcessor(LogitProcessor):
    """Make the end of the answer likelier, or less likely, as the answer grows.

    After ``n`` generated tokens the tokens that end the answer get ``bias * (n / 10) ** power``
    added to their logits: by default ``bias`` at the tenth token, four times as much at the
    twentieth. A negative ``bias`` makes answers longer. With ``text`` another token, such as
    ``</think>``, gets the bias in place of the end, until the model has written it.

    The rule is that of ``GenLengthLogitsProcessor`` in NVIDIA's logits-processor-zoo 0.2.1, with
    one exception: ``complete_sentences`` reads the text, where NVIDIA's looks for a token that is a
    full stop or a line break.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    example: ClassVar[Mapping[str, Any]] = {"bias": 0.01, "complete_sentences": True}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            bias: Added at the tenth token. No bias is more than 10,000 either way.
            power: Growth of the bias, 0 to 8: 1 is linear.
            complete_sentences: Whether the bias is added only where a sentence has ended: after a
                full stop, a question or exclamation mark, an ellipsis or a line break.
            eos_token_ids: The tokens that get the bias, at most 64. Left out, and without ``text``:
                the end tokens of the served model.
            text: One token of the served model that gets the bias instead.
        """

        bias: Bias
        power: Power = 2
        complete_sentences: bool = False
        eos_token_ids: _Ends | None = None
        text: Text | None = None

        def __post_init__(self) -> None:
            """Refuse both ``text`` and ``eos_token_ids``."""
            if self.text is not None and self.eos_token_ids is not None:
                raise ValueError("text: given together with eos_token_ids; give one")

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Find the tokens that get the bias.

        Raises:
            InvalidParameter: The text is not one token, no end tokens are known, or the bytes of
                the tokens are unknown.
        """
        if params.complete_sentences:
            served_vocabulary(cls.__name__, "complete_sentences", served.tokenizer)
        if params.text is None:
            ends = ends_for(cls.__name__, "eos_token_ids", params.eos_token_ids, served)
        else:
            served_vocabulary(cls.__name__, "text", served.tokenizer)
            ends = encode(served.tokenizer, params.text)
            if served.vocab_size is not None and max(ends, default=0) >= served.vocab_size:
                ends = ()  # tokenizers may have more
            if len(ends) != 1:
                raise InvalidParameter(
                    cls.__name__,
                    "text",
                    f"expected text that is one token of the served model, got "
                    f"{shown(params.text)}, which is {len(ends) or 'none'}",
                )
        return msgspec.structs.replace(params, text=None, eos_token_ids=tuple(dict.fromkeys(ends)))

    def start(self, request: Request) -> bool:  # noqa: ARG002 - the prompt does not count
        """Begin with none of the tokens."""
        return False

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Note whether one of the tokens came."""
        if not request.state:
            request.state = any(i in request.params.eos_token_ids for i in token_ids)

    def fork(self, request: Request) -> bool:
        """Return the state, which is immutable."""
        return bool(request.state)

    def edit(self, request: Request, edits: Edits) -> None:
        """Add the bias of this length."""
        params = request.params
        if request.state:
            edits.rest()
            return
        grown = params.bias * request.position**params.power / UNIT**params.power
        bias = max(-MAX_BIAS, min(MAX_BIAS, grown))
        if bias and not (params.complete_sentences and self._inside_sentence(request)):
            edits.bias(params.eos_token_ids, bias)

    def _inside_sentence(self, request: Request) -> bool:
        vocabulary = served_vocabulary(self.name, "complete_sentences", request.tokenizer)
        return not vocabulary.text(request.output_ids[-_LONGEST_STOP:]).endswith(_STOPS)

    def explain(self, request: Request) -> str:
        """Say how long the answer is."""
        return f"the bias of {request.position} tokens"
