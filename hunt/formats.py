"""Tool calls as SGLang's parsers read them, and the same texts with delimiters that went wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

if TYPE_CHECKING:
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

__all__ = ["TOOL", "Format", "calls", "count", "formats", "mutated"]

TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
        },
    },
}


class Format(NamedTuple):
    """The texts of two calls in one answer.

    Attributes:
        before: Text before the calls.
        call: One call.
        after: Text after them.
    """

    before: str
    call: str
    after: str


_KEYS = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
_FUNCTION = "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>"
_BLOCK = Format("<tool_call>\n", _FUNCTION, "\n</tool_call>")
#: Of the parsers whose classes do not say how their model writes a call.
_WRITTEN: Mapping[str, Format] = {
    **dict.fromkeys(("glm", "glm45", "ling3", "poolside_v1"), Format("", _KEYS, "")),
    "glm47": Format("", _KEYS.replace("\n", ""), ""),
    "spark25": Format("", _KEYS.replace(">\n<arg_v", "><arg_v"), ""),
    **dict.fromkeys(("nanbeige", "qwen3_coder", "step3p5"), _BLOCK),
    "mimo": Format(
        "", "<tool_call>\n<function=add><parameter=a>1</parameter></function></tool_call>", ""
    ),
    "gemma4": Format("", "<|tool_call>call:add{a:1}<tool_call|>", ""),
    "minicpm5": Format("", '<function name="add"><param name="a">1</param></function>', ""),
    "minimax-m2": Format(
        "<minimax:tool_call>\n",
        '<invoke name="add">\n<parameter name="a">1</parameter>\n</invoke>',
        "\n</minimax:tool_call>",
    ),
    "k2_horizon": Format(
        "<ifm|tool_calls>",
        '<ifm|tool_call>{"name": "add", "arguments": {"a": 1}}</ifm|tool_call>',
        "</ifm|tool_calls>",
    ),
}
#: A delimiter, and its beginning.
_MARKUP = re.compile(r"(<[^<>]*>)")


@cache
def formats() -> Mapping[str, Format]:
    """Map the names of SGLang's parsers to two calls that the parser finds.

    A parser is left out if it has no structure that its class tells, and none is written here.
    """
    from sglang.srt.function_call.function_call_parser import FunctionCallParser as Parsers

    found = {}
    for name in Parsers.ToolCallParserEnum:
        form = _WRITTEN.get(name) or _told(name)
        if form is not None and count(name, form.before + form.call * 2 + form.after) > 1:
            found[name] = form
    return found


def _told(name: str) -> Format | None:
    """Return a format that the parser's own class tells."""
    try:
        told = _parser(name).detector.structure_info()("add")
    except (NotImplementedError, ValueError, AttributeError):
        return None
    return Format("", f'{told.begin}{{"a": 1}}{told.end}', "")


def _parser(name: str) -> FunctionCallParser:
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    return FunctionCallParser([Tool(**TOOL)], name)


def count(name: str, text: str) -> int:
    """Count the calls that a parser of SGLang finds in a whole text."""
    return len(_parser(name).parse_non_stream(text)[1])


@st.composite
def calls(draw: st.DrawFn, name: str) -> str:
    """Draw two calls of a parser's format, mostly with one or two delimiters that went wrong.

    Args:
        draw: Of Hypothesis.
        name: Of the parser.
    """
    form = formats()[name]
    between = draw(st.sampled_from(["", "\n", " and", form.after + form.before]))
    text = form.before + form.call + between + form.call + form.after
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 0]))):
        text = draw(mutated(text))
    return text


@st.composite
def mutated(draw: st.DrawFn, text: str) -> str:
    """Draw a text in which a delimiter is missing, doubled, cut, nested or in another place.

    Args:
        draw: Of Hypothesis.
        text: With delimiters.
    """
    pieces = _MARKUP.split(text)
    places = range(1, len(pieces), 2)
    if not places:
        return text
    place, other = draw(st.sampled_from(places)), draw(st.sampled_from(places))
    one = pieces[place]
    kind = draw(st.sampled_from(["missing", "missing", "doubled", "cut", "nested", "another"]))
    if kind == "missing":
        pieces[place] = ""
    elif kind == "doubled":
        pieces[place] = one + draw(st.sampled_from(["", "\n", " and"])) + one
    elif kind == "cut":
        pieces[place] = one[: draw(st.integers(1, len(one) - 1))]
    elif kind == "nested":
        pieces[place] = pieces[other] + one
    else:
        pieces[place] = pieces[other]
    return "".join(pieces)
