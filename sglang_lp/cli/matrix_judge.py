"""The judging of ``sglang-lp doctor --matrix``: whether an answer came as it was asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from sglang_lp.builtins.thinking.delimiters import PAIRS

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Endpoints.
CHAT, COMPLETIONS = "chat", "completions"
#: The tool, and the only property of its arguments and of a document.
TOOL, PROPERTY = "count_sheep", "sheep"
#: Words of a document. No document has a longest one, so a model that goes on reaches its limit.
COLORS = "white", "black"
_COLOR = f"({'|'.join(COLORS)})"
REGEX = f"{_COLOR}( and {_COLOR})*"
SCHEMA = {
    "type": "object",
    "properties": {PROPERTY: {"type": "array", "items": {"enum": [*COLORS]}}},
    "required": [PROPERTY],
    "additionalProperties": False,
}
#: The budget of a block of thought, in tokens. The newline before its end is one more.
BUDGET = 8

_OK = 200
_LENGTH = "length"
#: Tools with which the answer has to be a call; those of ``loose`` are not ``strict``.
CALLING = "required", "named", "loose"


class Cell(NamedTuple):
    """One request of the matrix.

    Attributes:
        endpoint: ``chat`` or ``completions``.
        format: ``none``, ``json_schema`` or ``regex``.
        tools: ``no tools``; or the ``tool_choice``: ``none``, ``auto``, ``required``, ``named``; or
            ``loose`` for ``required`` with a tool that is not ``strict``.
        thinking: ``off``, ``on`` or ``budget``.
        fields: ``stock``, or ``toolkit`` with this toolkit's fields.
        stream: Whether the answer is streamed.
    """

    endpoint: str
    format: str
    tools: str
    thinking: str
    fields: str
    stream: bool

    @property
    def has_grammar(self) -> bool:
        """Whether SGLang compiles a grammar for the request."""
        return self.format != "none" or self.tools in CALLING


class Reply(NamedTuple):
    """The parts of an answer.

    Attributes:
        status: HTTP status, or the code of an error event; 0 if no answer came.
        content: The answer's text.
        thoughts: Its reasoning, as SGLang's parser returns it.
        calls: Names and arguments of its tool calls, as SGLang's parser returns them.
        finish: Its ``finish_reason``.
        blocks: Tokens of each block of thought, as the toolkit reports them.
        error: Message of an error.
    """

    status: int
    content: str = ""
    thoughts: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str | None = None
    blocks: tuple[int, ...] = ()
    error: str = ""


class Verdict(NamedTuple):
    """The outcome of one request.

    Attributes:
        came: The answer, in a few words.
        ok: Whether the request asked for it.
    """

    came: str
    ok: bool


def thinks_always(answered: Iterable[tuple[Cell, Reply]]) -> bool:
    """Tell whether thinking cannot be turned off: all answers that should have none have thoughts.

    Some parsers, as ``deepseek-r1``, read the beginning of every answer as thoughts.
    """
    found = [
        bool(reply.thoughts.strip())
        for cell, reply in answered
        if cell.endpoint == CHAT and cell.thinking == "off" and reply.status == _OK
    ]
    return bool(found) and all(found)


def judge(cell: Cell, reply: Reply, *, always: bool = False) -> Verdict:
    """Compare the answer to a request with the request.

    Args:
        cell: The request.
        reply: The answer.
        always: Whether the server thinks always, so that thoughts are no fault.
    """
    if reply.status == 0:
        return Verdict("no answer", ok=False)
    if reply.status != _OK:
        refused = 400 <= reply.status < 500  # noqa: PLR2004 - HTTP's
        return Verdict("refused" if refused else f"HTTP {reply.status}", ok=False)
    came, ok = _came(cell, reply)
    problems = []
    thoughts = cell.thinking == "off" and bool(reply.thoughts.strip())
    if any(text in reply.content for pair in PAIRS for text in pair):
        problems.append("delimiters in content")
    if cell.thinking == "budget" and max(reply.blocks, default=0) > BUDGET + 1:
        problems.append("over budget")
    ok = ok and not problems and (always or not thoughts)
    return Verdict(", ".join([came, *(["thoughts"] if thoughts else []), *problems]), ok)


def _came(cell: Cell, reply: Reply) -> Verdict:
    if reply.calls:
        return _judge_calls(cell, reply)
    if cell.tools not in CALLING and cell.format == "none" and reply.content.strip():
        return Verdict("text", ok=True)
    if is_document(cell.format, reply.content):
        called = cell.tools in CALLING
        return Verdict("document, no call" if called else "document", ok=not called)
    if reply.finish == _LENGTH:
        return _cut_off(reply)
    return Verdict(_instead(cell, reply), ok=False)


def _instead(cell: Cell, reply: Reply) -> str:
    """Name an answer that ended by itself and is neither the document nor the call."""
    if is_document(cell.format, reply.thoughts):
        return "document in thoughts"
    if cell.tools in CALLING:
        return "call as text" if TOOL in reply.content else "no call"
    return "other text" if reply.content.strip() else "nothing"


def _judge_calls(cell: Cell, reply: Reply) -> Verdict:
    if reply.finish == _LENGTH:
        return Verdict("cut off", ok=False)
    if not all(name == TOOL and _is_json(arguments) for name, arguments in reply.calls):
        return Verdict("broken call", ok=False)
    if not all(is_document("json_schema", arguments) for _, arguments in reply.calls):
        return Verdict("call with other arguments", ok=cell.tools == "loose")
    if is_document(cell.format, reply.content):
        return Verdict("document and call", ok=False)
    return Verdict("call", ok=cell.tools in {*CALLING, "auto"})


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _cut_off(reply: Reply) -> Verdict:
    where = "" if reply.content.strip() or not reply.thoughts else " in thoughts"
    return Verdict(f"cut off{where}", ok=False)


def is_document(kind: str, text: str) -> bool:
    """Tell whether a text is a complete document of :data:`SCHEMA` or :data:`REGEX`.

    Args:
        kind: ``json_schema`` or ``regex``; nothing is a document of ``none``.
        text: The text; blanks around it do not count.
    """
    if kind == "regex":
        return re.fullmatch(REGEX, text.strip()) is not None
    if kind == "none":
        return False
    if not _is_json(text):
        return False
    value: Any = orjson.loads(text)
    if not isinstance(value, dict) or value.keys() != {PROPERTY}:
        return False
    items = value[PROPERTY]
    return isinstance(items, list) and all(isinstance(i, str) and i in COLORS for i in items)
