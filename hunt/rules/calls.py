"""Rules of tool calls, as SGLang's parser returned them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hunt.answers import answers_of

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.rules.told import Found
    from hunt.servers import Kind

#: Parsers whose calls are one list, or that no text closes, see docs/thinking.md.
_WITHOUT_END = {"apertus2509", "cohere_command4", "dots", "kimi_k3", "lfm2", "llama3", "mistral"}


def calls_are_limited(asked: Asked, kind: Kind) -> Found:
    """A client that asked for no parallel calls gets one at most, and none if it asked for none."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        body = sent.body
        choice = body.get("tool_choice")
        choice = choice if isinstance(choice, dict) else {"type": choice}
        most = None
        if body.get("parallel_tool_calls") is False or choice.get("disable_parallel_tool_use"):
            most = 1 if kind.tools not in _WITHOUT_END else None
        if choice.get("type") == "none":
            most = 0
        if most is None or sent.odd or not body.get("tools"):
            continue
        for answer in answers_of(sent.path, reply):
            if len(answer.calls) > most:
                sort = f"{kind.tools}, {'streamed' if sent.is_stream else 'whole'}"
                yield sort, f"{len(answer.calls)} calls, expected {most}: {answer.texts}"
