"""A bound on the texts that SGLang renders into one prompt, before it renders and tokenizes them.

SGLang does both in its event loop, before it makes a request: a tokenizer takes 6 s for a chat of
three million characters, in which no other request is answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_lp.errors import RequestError
from sglang_lp.server.front.bounds import MAX_CHARACTERS_OF_TOKEN

#: Fields of a chat, and of a question about an input, whose texts go into one prompt.
CHAT = ("messages", "system", "tools", "input", "instructions", "chat_template_kwargs")
QUESTIONS = ("input", "state", "questions")
#: Types of parts that are no text of a prompt.
_MEDIA = frozenset(
    (
        *("audio", "audio_url", "document", "file", "image", "image_url"),
        *("input_audio", "input_file", "input_image", "video", "video_url"),
    )
)
#: Keys of a message whose values have parts.
_PARTS = frozenset(("content", "output"))


def check_rendered(body: Any, fields: tuple[str, ...], context: int) -> None:
    """Check the length of the texts that become one prompt.

    Args:
        body: As SGLang has parsed it.
        fields: Names of the fields.
        context: Most tokens of a prompt and its answer.

    Raises:
        RequestError: They are too long for the context.
    """
    if not isinstance(body, Mapping):
        return  # SGLang refuses it
    most = context * MAX_CHARACTERS_OF_TOKEN
    lengths = {name: _of_field(name, body[name]) for name in fields if name in body}
    total = sum(lengths.values())
    if total > most:
        longest = max(lengths, key=lengths.__getitem__)
        raise RequestError(
            f"{longest}: expected at most {most} characters in {', '.join(lengths)}, as the served "
            f"model takes {context} tokens, got {total}; shorten it"
        )


def _of_field(name: str, value: Any) -> int:
    if name == "questions":  # each becomes a prompt of its own
        each = value.values() if isinstance(value, Mapping) else value
        return max(map(_of_all, each), default=0) if isinstance(value, Mapping | list) else 0
    if name in {"messages", "input"} and isinstance(value, list):
        return sum(map(_of_message, value))
    return _of_content(value) if name == "system" else _of_all(value)


def _of_message(message: Any) -> int:
    if not isinstance(message, Mapping):
        return _of_all(message)
    return sum(
        len(key) + (_of_content(value) if key in _PARTS else _of_all(value))
        for key, value in message.items()
        if key != "images"  # Ollama's
    )


def _of_content(content: Any) -> int:
    """Return the characters of a text, or of those parts that are no media."""
    if not isinstance(content, list):
        return _of_all(content)
    return sum(
        _of_message(part)
        for part in content
        if not (isinstance(part, Mapping) and part.get("type") in _MEDIA)
    )


def _of_all(value: Any) -> int:
    """Return the characters of a value as JSON, about."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) + _of_all(one) for key, one in value.items())
    if isinstance(value, list):
        return sum(map(_of_all, value)) + len(value)
    return len(str(value))
