"""Fields of clients that ask for a rule, and the built-in that keeps it.

The HTTP process reads a field, and hands its value to both gates in a form that SGLang's processes
can send each other: a number, or a list or an object of whole numbers.
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
    ToolCallLimitLogitProcessor,
    TopNSigmaLogitProcessor,
)
from sglang_lp.params import MAX_INT

if TYPE_CHECKING:
    from sglang_lp.processor import LogitProcessor
    from sglang_lp.served_model import ServedModel

#: Values of ``tool_choice``: no call anywhere, or none in the thoughts before a structured answer.
NO_CALLS, NO_CALLS_IN_THOUGHTS = 0, 1


class EngineField(NamedTuple):
    """A field that asks for a rule.

    Attributes:
        processor: The built-in that keeps the rule.
        params: Return the built-in's parameters for a value of the field and the served model.
        is_sglangs: Whether SGLang has the field as well. A server that does not allow the built-in
            leaves it to SGLang, and a profile need not let a request set it.
    """

    processor: type[LogitProcessor]
    params: Callable[[Any, ServedModel], Mapping[str, Any]]
    is_sglangs: bool = False


def _sequences(flat: list[int], _served: ServedModel) -> Mapping[str, Any]:
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


def _no_calls(value: int, served: ServedModel) -> Mapping[str, Any]:
    """Ban the texts that open a tool call."""
    form = served.tool_calls
    if form is None:
        return {}
    where = "thinking" if value == NO_CALLS_IN_THOUGHTS else form.where
    return {"words": form.starts, "where": where}


def _few_calls(count: int, served: ServedModel) -> Mapping[str, Any]:
    """End the answer after a number of tool calls."""
    form = served.tool_calls
    return {"max_tool_calls": count, "where": "everywhere" if form is None else form.where}


#: By the names of OpenAI and vLLM; of Transformers and TensorRT-LLM for n-grams, and of llama.cpp.
ENGINE_FIELDS: Mapping[str, EngineField] = {
    "bad_words": EngineField(BadWordsLogitProcessor, _sequences),
    "allowed_token_ids": EngineField(
        AllowedTokensLogitProcessor, lambda token_ids, _served: {"token_ids": token_ids}
    ),
    "no_repeat_ngram_size": EngineField(
        DeepseekOCRNoRepeatNGramLogitProcessor,
        lambda size, _served: {"ngram_size": size, "window_size": MAX_INT},
    ),
    "repetition_detection": EngineField(
        LoopBreakerLogitProcessor, lambda sizes, _served: {**sizes, "action": "end"}
    ),
    "min_tokens": EngineField(
        MinLengthLogitProcessor, lambda count, _served: {"min_tokens": count}
    ),
    "tool_choice": EngineField(BadWordsLogitProcessor, _no_calls, is_sglangs=True),
    "parallel_tool_calls": EngineField(ToolCallLimitLogitProcessor, _few_calls, is_sglangs=True),
    "top_n_sigma": EngineField(
        TopNSigmaLogitProcessor, lambda sigmas, _served: {"top_n_sigma": sigmas}
    ),
}

#: Those that are not SGLang's: a profile says which of them its requests may have.
ASKED_FIELDS = frozenset(name for name, field in ENGINE_FIELDS.items() if not field.is_sglangs)
