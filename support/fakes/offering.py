"""The HTTP answers of a guarded server, for the page of ``sglang-lp try``: it has no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from sglang_lp import builtins
from sglang_lp.wire.names import HEADER, LIST_PATH, TOKENIZER_PATH
from support.fakes.exchanges import ids, tokenizer
from support.servers.listening import Answered, Asked

__all__ = ["OFFERED", "PLAIN", "answering"]

#: An answer without a processor.
PLAIN = " the answer is five"


def _listed(name: str) -> dict[str, Any]:
    fields = msgspec.structs.fields(getattr(builtins, name).Params)
    return {
        "name": name,
        "parameters": [{"name": field.name, "required": field.required} for field in fields],
    }


#: The answer of ``GET /sglang_lp``.
OFFERED = {
    "guarded": True,
    "version": "1.2.3",
    "sglang": "0.5.23",
    "policy": "0" * 64,
    "processors": [
        *map(_listed, ("ChainLogitProcessor", "BadWordsLogitProcessor", "DRYLogitProcessor")),
        {"name": "own:Own", "parameters": [{"name": "size", "required": True}]},
        {"name": "foreign:Foreign", "parameters": None},
    ],
    "profiles": [],
}


def answering(
    said: str = " the answer is six", **changed: Answered
) -> tuple[Callable[[Asked], Answered], list[Asked]]:
    """Return a server, and the requests that it gets.

    Args:
        said: The answer with a processor.
        changed: Answers by the last part of a path.
    """
    asked: list[Asked] = []

    def answer(one: Asked) -> Answered:
        asked.append(one)
        name = one.path.rpartition("/")[2]
        if name in changed:
            return changed[name]
        if one.path == LIST_PATH:
            return Answered(200, OFFERED)
        if one.path == "/v1/models":
            return Answered(200, {"data": [{"id": "tests-model"}]})
        if one.path == TOKENIZER_PATH:
            told = orjson.loads(tokenizer().to_str())
            return Answered(200, {"vocab_size": None, "eos_token_ids": [], "tokenizer": told})
        processor = one.body.get("custom_logit_processor")
        text = PLAIN if processor is None else said
        content = {"message": {"role": "assistant", "content": text}}
        choice = {
            **(content if "messages" in one.body else {"text": text}),
            "finish_reason": "stop",
            "token_ids": ids(text),
            "prompt_token_ids": ids(" how many"),
        }
        usage = {"completion_tokens": len(ids(text))}
        return Answered(200, {"choices": [choice], "usage": usage}, {HEADER: processor or "none"})

    return answer, asked
