"""Answers in the words of their prompt, or in others."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.builtins.prompt.prompts import ReadPrompts, numbers_of
from sglang_lp.edits import MAX_BIAS
from sglang_lp.params import TokenId
from sglang_lp.processor import LogitProcessor, lasting
from sglang_lp.request import History
from sglang_lp.served_model import ends_for

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.int64]]

    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

Bias = Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]
_Ends = Annotated[tuple[TokenId, ...], Meta(max_length=64)]

#: Most tokens of a prompt that get the bias: a step writes each (`make bench PART=bounds`).
MAX_CITED = 2_048


class _Prompt:
    """The tokens of a prompt and of the end, each once; copies of a request share one."""

    __slots__ = ("__weakref__", "_distinct", "_ends", "_found", "prompt")

    def __init__(self, prompt: bytes, ends: tuple[int, ...]) -> None:
        import numpy as np

        self.prompt = prompt
        self._ends = ends
        token_ids = np.frombuffer(prompt, dtype=np.int64)
        # Sorted together, the last place of each token comes last.
        bits = len(token_ids).bit_length()
        packed = token_ids << bits | np.arange(len(token_ids))
        packed.sort()
        last = np.ones(len(packed), dtype=bool)
        np.not_equal(packed[1:] >> bits, packed[:-1] >> bits, out=last[:-1])
        places = packed[last] & ((1 << bits) - 1)
        places.sort()
        #: The tokens of the prompt, the latest first.
        self._distinct: Numbers = token_ids[places[::-1]]
        self._found: dict[int, Iterable[int]] = {}

    def ids(self, vocab_size: int) -> Iterable[int]:
        """Return the tokens in order, without pad values of images: they are in no vocabulary."""
        found = self._found.get(vocab_size)
        if found is None:
            cited = self._distinct[self._distinct < vocab_size][:MAX_CITED].tolist()
            found = self._found[vocab_size] = lasting(array("q", sorted({*cited, *self._ends})))
        return found


_prompts: ReadPrompts[_Prompt] = ReadPrompts()


class CiteFromPromptLogitProcessor(LogitProcessor):
    """Make every token that is in the prompt likelier, or less likely.

    A positive ``bias`` draws an answer to the words of its prompt: names, figures, quotes. A
    negative one draws it to other words.

    Of a prompt with more than 2,048 different tokens, the last 2,048 get the bias.

    The rule is that of ``CiteFromPromptLogitsProcessor`` in NVIDIA's logits-processor-zoo 0.2.1,
    which biases all tokens of the prompt.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    needs = History.NONE
    reads_prompt = True
    example: ClassVar[Mapping[str, Any]] = {"bias": 1.5}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            bias: Added to the logits of the prompt's tokens, at most 10,000 either way.
            eos_token_ids: Tokens that also get the bias, so that an answer ends as easily as
                without it. Left out: the end tokens of the served model. None at all: ``[]``.
        """

        bias: Bias = 1.0
        eos_token_ids: _Ends | None = None

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Take the end tokens of the served model if the request names none."""
        ends = ends_for(cls.__name__, "eos_token_ids", params.eos_token_ids, served)
        return msgspec.structs.replace(params, eos_token_ids=ends)

    def start(self, request: Request) -> _Prompt:
        """Read the prompt."""
        ends = request.params.eos_token_ids
        tokens = numbers_of(request.prompt_ids)
        return _prompts.of(tokens, (ends,), lambda prompt: _Prompt(prompt, ends))

    def fork(self, request: Request) -> _Prompt:
        """Return the state itself, which does not change."""
        return request.state  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Add the bias."""
        if request.params.bias:
            edits.bias(request.state.ids(edits.vocab_size), request.params.bias)
