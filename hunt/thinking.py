"""The reasoning of an answer by SGLang's own parser, block by block."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hunt.tokens import fewest

if TYPE_CHECKING:
    from hunt.answers import Answer

__all__ = ["TOOL", "blocks", "returned", "tokens_of"]

_START, _END, TOOL = "<think>", "</think>", "<tool_call>"
#: Names of the fields with reasoning, on all endpoints.
_REASONING = re.compile("reasoning|thinking")


def tokens_of(thought: str) -> int:
    """Count the tokens of a thought, at least, without the tool start that it may end with.

    A block may go beyond its budget to finish a tool start that had begun; else the new line of the
    closing follows.
    """
    if thought.endswith("\n") and any(thought[:-1].endswith(TOOL[:n]) for n in range(1, len(TOOL))):
        thought = thought[:-1]
    for length in range(len(TOOL), 0, -1):
        if thought.endswith(TOOL[:length]):
            thought = thought[:-length]
            break
    # A token that is no whole character is three bytes of a replacement character.
    return fewest(thought.replace("\ufffd", "?"))


def blocks(begun: str, text: str, *, inside: bool = False) -> list[str]:
    """Return the reasoning that a text adds, for each block that it continues or opens.

    Args:
        begun: The text that it follows: of the prompt, or of the message that it continues.
        text: The answer, with its delimiters.
        inside: Whether reasoning is open where all of it begins.
    """
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    found, before = [], len(begun)
    for block in (begun + text).split(_END):
        if before < len(block):
            parser = ReasoningParser("qwen3", force_reasoning=inside)
            pieces = [parser.parse_stream_chunk(char)[0] or "" for char in block]
            added = "".join(pieces[max(0, before) :]) + (parser.parse_stream_end()[0] or "")
            found += [added] if added else []
        before -= len(block) + len(_END)
        inside = False
    return found


def returned(answer: Answer, body: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the reasoning that the served parser returned, and how many blocks it may be.

    The stream of a chat joins the block that the answer began with and one that opens later. An
    answer that is not streamed joins what a tool call interrupts, and the text before a start.

    Args:
        answer: Of a server with a reasoning parser.
        body: Of its request.
    """
    is_off = "chat_template_kwargs" in body or "none" in str(body.get("reasoning_effort"))
    for name, text in answer.texts.items():
        if not _REASONING.search(name) or is_off:
            continue
        if body.get("stream"):
            yield text, 2
        else:
            yield _without_calls(text.rpartition(_START)[2]), 1


def _without_calls(reasoning: str) -> str:
    """Return reasoning without what lies between a tool start and the next start."""
    return re.sub(f"{TOOL}.*?({_START}|$)", "", reasoning, flags=re.DOTALL)
