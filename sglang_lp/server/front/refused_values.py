"""Checks of values that SGLang answers with HTTP 500, though they are the client's fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from typing import Any

from sglang_lp.errors import RequestError, did_you_mean, shown

#: Most characters of a text that SGLang parses, with calls and with thoughts: the slowest of its
#: parsers take 0.5 s.
MAX_CALLS, MAX_THOUGHTS = 16_384, 65_536
#: Most blanks in a row in such a text.
MAX_BLANKS = 128
_LONG_BLANK = re.compile(rf"\s{{{MAX_BLANKS + 1}}}")


def check_response_format(body: Any) -> None:
    """Check a body of a chat: SGLang's own check of its ``response_format`` raises an odd error.

    Raises:
        RequestError: ``response_format`` or its schema is no object, or is nested too deeply.
    """
    form = body.get("response_format") if isinstance(body, Mapping) else None
    if not form:
        return
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest

    try:
        ChatCompletionRequest(messages=[], response_format=deepcopy(form))
    except ValueError:
        pass  # SGLang refuses it
    except (AttributeError, TypeError):
        raise RequestError(
            "response_format: expected an object with a type and a schema of objects, such as "
            f'{{"type": "json_object"}}, got {shown(form)}'
        ) from None
    except RecursionError:
        raise RequestError(
            "response_format: expected a few levels of objects, got hundreds"
        ) from None


def check_tool_parser(body: Any) -> None:
    """Check a body of ``/parse_function_call``.

    Raises:
        RequestError: ``tool_call_parser`` is missing or unknown, or ``text`` could take it seconds.
    """
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    _check_parsed(body, MAX_CALLS)
    _check(body, "tool_call_parser", FunctionCallParser.ToolCallParserEnum)


def check_reasoning_parser(body: Any) -> None:
    """Check a body of ``/separate_reasoning``.

    Raises:
        RequestError: ``reasoning_parser`` is unknown, or ``text`` could take it seconds.
    """
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    _check_parsed(body, MAX_THOUGHTS)
    _check(body, "reasoning_parser", ReasoningParser.DetectorMap, str.lower)


def _check_parsed(body: Any, most: int) -> None:
    """Check a text that SGLang parses in its event loop.

    Args:
        body: As SGLang has parsed it.
        most: Most characters of the text.
    """
    text = body.get("text") if isinstance(body, Mapping) else None
    if not isinstance(text, str):
        return  # SGLang refuses it
    if len(text) > most:
        raise RequestError(
            f"text: expected at most {most} characters, as some parsers of SGLang's take a time "
            f"that grows with their square, got {len(text)}; use the parser in your own program"
        )
    if _LONG_BLANK.search(text):
        raise RequestError(
            f"text: expected at most {MAX_BLANKS} blanks and line ends in a row, as some parsers "
            "of SGLang's take a time that grows with their cube; shorten them"
        )


def _check(
    body: Any, field: str, known: Collection[str], spelled: Callable[[str], str] = str
) -> None:
    name = body.get(field) if isinstance(body, Mapping) else body
    # SGLang refuses other types.
    if isinstance(name, str | None) and spelled(name or "") not in known:
        hint = did_you_mean(name or "", known) or f"; one of them is {next(iter(known))!r}"
        raise RequestError(
            f"{field}: expected the name of a parser of SGLang's, got {shown(name)}{hint}"
        )
