"""Bodies of the routes that parse a text, where SGLang answers an unknown parser with HTTP 500."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sglang_lp.errors import RequestError, did_you_mean, shown


def check_tool_parser(body: Any) -> None:
    """Check a body of ``/parse_function_call``.

    Raises:
        RequestError: ``tool_call_parser`` is missing or unknown.
    """
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    _check(body, "tool_call_parser", FunctionCallParser.ToolCallParserEnum)


def check_reasoning_parser(body: Any) -> None:
    """Check a body of ``/separate_reasoning``.

    Raises:
        RequestError: ``reasoning_parser`` is unknown.
    """
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    _check(body, "reasoning_parser", ReasoningParser.DetectorMap, str.lower)


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
