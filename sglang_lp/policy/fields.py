"""Fields of other engines' clients that ask for a rule, and the built-in that keeps it.

The HTTP process reads a field, and hands its value to both gates in a form that SGLang's processes
can send each other: whole numbers, a list of them, or an object of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins import (
    AllowedTokensLogitProcessor,
    BadWordsLogitProcessor,
    DeepseekOCRNoRepeatNGramLogitProcessor,
    LoopBreakerLogitProcessor,
    MinLengthLogitProcessor,
)
from sglang_lp.params import MAX_INT

if TYPE_CHECKING:
    from sglang_lp.processor import LogitProcessor


class EngineField(NamedTuple):
    """A field that asks for a rule.

    Attributes:
        processor: The built-in that keeps the rule.
        params: Return the built-in's parameters for a value of the field.
    """

    processor: type[LogitProcessor]
    params: Callable[[Any], Mapping[str, Any]]


def _sequences(flat: list[int]) -> Mapping[str, Any]:
    """Return banned sequences, each sent as its length and its tokens."""
    token_ids: list[int] = []
    lengths: list[int] = []
    place = 0
    while place < len(flat):
        length = flat[place]
        lengths.append(length)
        token_ids += flat[place + 1 : place + 1 + length]
        place += 1 + max(0, length)
    return {"token_ids": token_ids, "lengths": lengths}


#: By the names of vLLM and, for n-grams, of Transformers and TensorRT-LLM.
ENGINE_FIELDS: Mapping[str, EngineField] = {
    "bad_words": EngineField(BadWordsLogitProcessor, _sequences),
    "allowed_token_ids": EngineField(
        AllowedTokensLogitProcessor, lambda token_ids: {"token_ids": token_ids}
    ),
    "no_repeat_ngram_size": EngineField(
        DeepseekOCRNoRepeatNGramLogitProcessor,
        lambda size: {"ngram_size": size, "window_size": MAX_INT},
    ),
    "repetition_detection": EngineField(
        LoopBreakerLogitProcessor, lambda sizes: {**sizes, "action": "end"}
    ),
    "min_tokens": EngineField(MinLengthLogitProcessor, lambda count: {"min_tokens": count}),
}
