"""Rules of guaranteed answers, and of the room that is left for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hunt.rules.told import Found, Told, told_of
from hunt.sent import GENERATE
from hunt.thinking import TOOL
from hunt.values import CLOSING, END, START

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.servers import Kind

_BUDGET = "ThinkingBudgetLogitProcessor"
#: A block, perhaps without its end; and texts that are no content.
_BLOCK = re.compile("<think>.*?(?:</think>|$)", re.DOTALL)
_NO_CONTENT = re.compile(r"<think>|</think>|<\|im_\w+\|>|\s")
#: Parameters that end a block or an answer elsewhere, or that move it.
_OTHERWISE = {"at_limit", "thinking_start", "closing", "tool_start_token_ids", "resumed_tokens"}


def answer_is_guaranteed(asked: Asked, kind: Kind) -> Found:
    """An answer with a guarantee that ends by itself has text that a reader sees, or a call."""
    for told in told_of(asked):
        is_wished = _wished(told, kind, "min_answer_tokens") > 0 and _is_plain(told)
        if not is_wished or told.answer.finish != "stop":
            continue
        text = _content(told, kind)
        if text is None or TOOL in text or told.answer.calls:
            continue
        if not _NO_CONTENT.sub("", text):
            yield told.sent.path, f"no answer: {told.answer.texts} {told.answer.token_ids}"


def room_is_left(asked: Asked, kind: Kind) -> Found:
    """An answer that is cut has its room behind the last block."""
    for told in told_of(asked):
        ids, most = told.answer.token_ids, told.wish.sampling.get("max_new_tokens", 0)
        room = max(_wished(told, kind, name) for name in ("answer_room", "min_answer_tokens"))
        if ids is None or told.answer.finish != "length" or not room or not _is_plain(told):
            continue
        left, after = min(room, most - CLOSING), _behind(ids, is_open=_opens(told))
        if after is not None and after < left and TOOL not in told.answer.texts.get("text", ""):
            yield told.sent.path, f"{after} tokens are left of {left}, in {most}: {ids}"


def _behind(ids: Sequence[int], *, is_open: bool) -> int | None:
    """Count the tokens behind the last block, none in an open block; ``None`` without a block."""
    after = 0 if is_open else None
    for token in ids:
        if token == START or (is_open and token != END):
            is_open, after = True, 0
        elif is_open:
            is_open = False
        elif after is not None:
            after += 1
    return after


def _wished(told: Told, kind: Kind, name: str) -> int:
    """Return a number of the request, else of the operator's efforts or default."""
    own = [params for processor, params in told.wish.processors if processor == _BUDGET]
    rules = kind.rules
    given = [*own, rules.get("effort", {}), rules.get("defaults", {}).get("params", {})]
    found = (params[name] for params in given if isinstance(params.get(name), int))
    return next(found, 0)


def _is_plain(told: Told) -> bool:
    """Tell whether nothing else decides where blocks and the answer end."""
    links: Mapping[str, Any] = dict(told.wish.processors)
    names = {"support.processors.scripted:Scripted", _BUDGET}
    return (
        told.is_whole
        and told.answer.finish in {"stop", "length"}
        and {*links} <= names
        and not _OTHERWISE & {*links.get(_BUDGET, {}), *told.wish.params}
        and not told.wish.may_stop
        and not {"regex", "json_schema", "response_format", "ignore_eos"} & told.sent.body.keys()
        and not {"regex", "json_schema", "ignore_eos"} & told.wish.sampling.keys()
    )


def _opens(told: Told) -> bool:
    """Tell whether the text before an answer ends in a block."""
    _, start, inside = told.wish.begun.rpartition("<think>")
    return bool(start) and "</think>" not in inside


def _content(told: Told, kind: Kind) -> str | None:
    """Return the text that a reader takes for the answer; ``None`` if it cannot be told."""
    texts = told.answer.texts
    if told.sent.path != GENERATE and kind.parser:
        return "".join(said for name, said in texts.items() if name.startswith(("content", "text")))
    text = texts.get("text", texts.get("content"))
    if text is None or told.sent.path != GENERATE:
        return None
    begun = "<think>" if _opens(told) else ""
    return _BLOCK.sub("", begun + text)
