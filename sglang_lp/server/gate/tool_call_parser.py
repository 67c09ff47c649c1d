"""The texts around one tool call, in the format of the served tool-call parser.

SGLang's parsers declare these texts under several names, or not at all, and a block may hold
several calls. So this is a table, by the names in SGLang's registry (0.5.20 to 0.5.23).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins.thinking.delimiters import resolve
from sglang_lp.errors import RequestError
from sglang_lp.served_model import ToolCallFormat
from sglang_lp.text.banned import banned_texts
from sglang_lp.text.triggers import text_trigger

if TYPE_CHECKING:
    from sglang_lp.served_model import ReasoningFormat

logger = logging.getLogger(__name__)

_XML = ToolCallFormat(("<tool_call>",), "</tool_call>")
#: One block may hold several calls, and SGLang's parser reads a call in a stream without a block.
_FUNCTION = ToolCallFormat(("<tool_call>", "<function="), "</function>", "</tool_call>")
_DEEPSEEK = ToolCallFormat(
    ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)

#: Formats without an end hold calls in a list (of JSON or of Python), or have no text after a call.
FORMATS: Mapping[str, ToolCallFormat] = {
    **dict.fromkeys(
        (
            "glm",
            "glm45",
            "glm47",
            "hermes",
            "ling3",
            "mimo",
            "poolside_v1",
            "spark25",
        ),
        _XML,
    ),
    **dict.fromkeys(("qwen", "qwen25", "trinity"), _XML._replace(json_lines=True)),
    **dict.fromkeys(("nanbeige", "qwen3_coder", "step3p5"), _FUNCTION),
    "apertus2509": ToolCallFormat(("<|tools_prefix|>",)),
    "cohere_command4": ToolCallFormat(("<|START_ACTION|>",)),
    "deepseekv3": _DEEPSEEK,
    "deepseekv31": _DEEPSEEK,
    "deepseekv32": ToolCallFormat(
        ("<｜DSML｜function_calls>", "<｜DSML｜invoke"),
        "</｜DSML｜invoke>",
        "</｜DSML｜function_calls>",
    ),
    "deepseekv4": ToolCallFormat(
        ("<｜DSML｜tool_calls>", "<｜DSML｜invoke"), "</｜DSML｜invoke>", "</｜DSML｜tool_calls>"
    ),
    "deepseekv41": ToolCallFormat(
        ("<｜DSML｜ calls>", "<｜DSML｜ invoke"), "</｜DSML｜ invoke>", "</｜DSML｜ calls>"
    ),
    "dots": ToolCallFormat(("<dots_function_call>",)),
    "gemma4": ToolCallFormat(("<|tool_call>",), "<tool_call|>"),
    "gigachat35": ToolCallFormat(
        ("<｜GCML｜tool_calls>", "<｜GCML｜invoke"), "</｜GCML｜invoke>", "</｜GCML｜tool_calls>"
    ),
    "hunyuan": ToolCallFormat(("<tool_calls>", "<tool_call>"), "</tool_call>", "</tool_calls>"),
    "inkling": ToolCallFormat(
        ("<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"), "<|end_message|>"
    ),
    "interns1": ToolCallFormat(("<|action_start|> <|plugin|>",), "<|action_end|>"),
    "iquest_q1": ToolCallFormat(("<iquest_tool_call>",), "</iquest_tool_call>"),
    "k2_horizon": ToolCallFormat(
        ("<ifm|tool_calls>", "<ifm|tool_call>"), "</ifm|tool_call>", "</ifm|tool_calls>"
    ),
    "kimi_k2": ToolCallFormat(
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "kimi_k3": ToolCallFormat(("<|open|>tools<|sep|>",)),
    "lfm2": ToolCallFormat(("<|tool_call_start|>",)),
    "llama3": ToolCallFormat(("<|python_tag|>",)),
    # The parser takes any white space before the name.
    "minicpm5": ToolCallFormat(("<function ", "<function\n", "<function\t"), "</function>"),
    "minimax-m2": ToolCallFormat(
        ("<minimax:tool_call>", "<invoke name="), "</invoke>", "</minimax:tool_call>"
    ),
    "mistral": ToolCallFormat(("[TOOL_CALLS]",)),
    "muse": ToolCallFormat(
        ("<atem:function_calls>", "<atem:invoke"), "</atem:invoke>", "</atem:function_calls>"
    ),
    "step3": ToolCallFormat(
        ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"),
        "<｜tool_call_end｜>",
        "<｜tool_calls_end｜>",
    ),
}


def tool_call_format(
    name: str | None, tokenizer: Any, reasoning: ReasoningFormat | None
) -> ToolCallFormat | None:
    """Return the format of a tool-call parser; ``None`` if it is not known, or no tokens spell it.

    Args:
        name: ``--tool-call-parser``, or ``None``.
        tokenizer: The served model's.
        reasoning: Delimiters of the served reasoning parser. Unless a call ends the reasoning
            there, a call counts outside of reasoning only.
    """
    form = FORMATS.get(name or "")
    if form is None:
        return None
    try:
        for text in filter(None, (*form.starts, form.end, form.block_end)):
            text_trigger("--tool-call-parser", str(name), tokenizer, text)
        banned_texts("--tool-call-parser", str(name), tokenizer, form.starts)
        if reasoning is None or any(
            start.startswith(one) or one.startswith(start)
            for start in form.starts
            for one in reasoning.tool_starts
        ):
            return form
        resolve(tokenizer, reasoning.start, reasoning.end)
    except RequestError as error:
        logger.warning(
            "tool_choice and parallel_tool_calls are left to SGLang: the tool calls of %s cannot "
            "be told by this tokenizer (%s)",
            name,
            error,
        )
        return None
    return form._replace(where="answer")
