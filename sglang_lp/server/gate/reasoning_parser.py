"""The delimiters of the served reasoning parser, read from SGLang's own class."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

from sglang_lp.served_model import ReasoningFormat

logger = logging.getLogger(__name__)

#: Further texts that end reasoning, as well as the end token and tool start that a parser declares:
#: the parser's own loop looks for them, in SGLang 0.5.23.
_OTHER_ENDS = {
    "cohere_command4": ("<|START_TEXT|>", "<|START_ACTION|>"),
    "inkling": ("<|content_text|>", "<|content_model_end_sampling|>"),
    "kimi_k3": ("<|open|>response<|sep|>",),
    "muse": ("<|eot|>",),
}
#: Texts that open the answer or a tool call after a block. The parser drops the text before, or
#: it is a header.
_ANSWER_STARTS = {
    "beam": ("<|message|>",),
    "cohere_command4": ("<|START_TEXT|>", "<|START_ACTION|>"),
    "gpt-oss": ("<|message|>",),
    "inkling": (
        "<|content_text|>",
        "<|content_invoke_tool_json|>",
        "<|content_invoke_tool_text|>",
    ),
    "kimi_k3": ("<|open|>response<|sep|>", "<|open|>tools<|sep|>"),
    "muse": ("<|message|>",),
}
#: Parsers that drop the text of an answer without such a text before it.
_HEADED = frozenset({"beam", "cohere_command4", "gpt-oss"})
#: Starts of tool calls that a parser takes out of the reasoning without declaring them, and the
#: end of such a call if the reasoning goes on afterwards.
_TOOLS = {
    "apertus2509": (("<|tools_prefix|>[",), "<|tools_suffix|>"),
    "inkling": (("<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"), ""),
}


def reasoning_format(
    name: str | None, tokenizer: Any, *, strict: bool = False
) -> ReasoningFormat | None:
    """Return the delimiters of a reasoning parser, or ``None`` if they cannot be read.

    Args:
        name: ``--reasoning-parser``, or ``None``.
        tokenizer: The served model's, which some parsers ask for their delimiters.
        strict: ``--enable-strict-thinking``.
    """
    if not name:
        return None
    try:
        detector = _detector(name, tokenizer, _asking("high"))
        others: tuple[ReasoningFormat, ...] = ()
        if hasattr(detector, "request_selectable_think_end_tokens"):
            others = tuple(
                _format(name, _detector(name, tokenizer, _asking(effort)))
                for effort in ("medium", "low")
            )
        return _format(name, detector)._replace(others=others, strict=strict)
    except Exception as error:  # noqa: BLE001 - a parser raises what it likes
        logger.warning(
            "thinking budgets: the delimiters of the reasoning parser %s cannot be told (%s); they "
            "are those of the tokenizer, if it has a known pair",
            name,
            error,
        )
        return None


def may_begin_inside(name: str, request: Any, tokenizer: Any) -> bool:
    """Tell whether the parser of a chat reads text without a start token as reasoning.

    Args:
        name: ``--reasoning-parser``.
        request: The chat, which may continue an answer.
        tokenizer: The served model's.
    """
    detector = _detector(name, tokenizer, request)
    return _can_begin_inside(detector, _start(detector))


def _detector(name: str, tokenizer: Any, request: Any) -> Any:
    """Return SGLang's parser of a request whose answer may begin with reasoning."""
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    parser = ReasoningParser(name, force_reasoning=True, request=request, tokenizer=tokenizer)
    return parser.detector


def _asking(effort: str) -> Any:
    """Return a request that asks for a level of effort."""
    return SimpleNamespace(chat_template_kwargs={"reasoning_effort": effort})


def _start(detector: Any) -> str:
    return f"{detector.think_start_token}{getattr(detector, 'think_start_self_label', '')}"


def _format(name: str, detector: Any) -> ReasoningFormat:
    start = _start(detector)
    if not (start and detector.think_end_token):
        raise ValueError("it has no start or no end")
    return ReasoningFormat(
        start,
        detector.think_end_token,
        _tool_starts(name, detector),
        getattr(detector, "tool_start_at_line_start", False),
        _TOOLS.get(name, ((), ""))[1],
        _OTHER_ENDS.get(name, ()),
        _can_begin_inside(detector, start),
        answer_starts=_ANSWER_STARTS.get(name, ()),
        headed=name in _HEADED,
    )


def _tool_starts(name: str, detector: Any) -> tuple[str, ...]:
    declared = getattr(detector, "tool_start_token", None)
    return _TOOLS[name][0] if name in _TOOLS else (declared,) if declared else ()


def _can_begin_inside(detector: Any, start: str) -> bool:
    """Tell whether the parser reads text without a start token as reasoning.

    It may also return such text as content with the start token added before it.
    """
    part = detector.parse_streaming_increment("words " * 20)
    return bool(part.reasoning_text or part.normal_text.startswith(start))
