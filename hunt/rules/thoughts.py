"""Rules of guaranteed answers, and of the room that is left for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hunt.rules.told import Found, Told, told_of
from hunt.sent import GENERATE
from hunt.thinking import TOOL
from hunt.values import END, START

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
    """An answer with a guarantee has text that a reader sees, or a call, where there is room."""
    for told in told_of(asked):
        if _wished(told, kind, "min_answer_tokens") < 1 or not _is_plain(told):
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
        left = min(room, most - 1)
        last = max((at for at, token in enumerate(ids) if token in {START, END}), default=None)
        opened = START if _opens(told) else END
        if last is not None:
            opened = ids[last]
        elif opened == END:
            continue  # no block
        after = 0 if opened == START else len(ids) - 1 - (last or 0)
        if after < left and TOOL not in told.answer.texts.get("text", ""):
            yield told.sent.path, f"{after} tokens are left of {left}, in {most}: {ids}"


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
    return (
        told.wish.begun.rpartition("<think>")[2].find("</think>")
        < 0
        < len(told.wish.begun.rpartition("<think>")[1])
    )


def _content(told: Told, kind: Kind) -> str | None:
    """Return what a reader takes for the answer; ``None`` if it cannot be told."""
    texts = told.answer.texts
    if told.sent.path != GENERATE and kind.parser:
        return texts.get("content", "")
    text = texts.get("text", texts.get("content"))
    if text is None or told.sent.path != GENERATE:
        return None
    begun = "<think>" if _opens(told) else ""
    return _BLOCK.sub("", begun + text)
