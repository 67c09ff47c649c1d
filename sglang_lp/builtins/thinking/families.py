"""A row for each model family whose thinking delimiters are known by id.

The class statement is the row: the documentation and the contract tests of a family follow from it.
A family whose ids were never checked has none: its ids come from the served tokenizer, by the
strings in :mod:`sglang_lp.builtins.thinking.delimiters`.
"""

from __future__ import annotations

from sglang_lp.builtins.thinking.budget import ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking.known import Family

_SGLANG = "SGLang 0.5.23, sampling/custom_logit_processor.py"


class Qwen3ThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="Qwen3, Qwen3-2507 Thinking",
        start="<think>",
        start_ids=(151667,),
        end="</think>",
        end_ids=(151668,),
        new_line_id=198,
        source=f"{_SGLANG}; end: QwenLM/Qwen3, README and "
        "docs/source/getting_started/quickstart.md",
        tool_starts=("<tool_call>",),
    ),
):
    """A thinking budget for Qwen3."""

    __module__ = "sglang_lp.builtins"


class Qwen3_5ThinkingBudgetLogitProcessor(  # noqa: N801 - not Qwen 35
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="Qwen3.5, Qwen3.6",
        start="<think>",
        start_ids=(248068,),
        end="</think>",
        end_ids=(248069,),
        new_line_id=198,
        source="PR 20029, read from the tokenizer; issue 25536",
        tool_starts=("<tool_call>",),
    ),
):
    """A thinking budget for Qwen3.5 and Qwen3.6."""

    __module__ = "sglang_lp.builtins"


class DeepSeekR1ThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="DeepSeek-R1, DeepSeek-R1-0528",
        start="<think>",
        start_ids=(128798,),
        end="</think>",
        end_ids=(128799,),
        new_line_id=201,
        source=_SGLANG,
    ),
):
    """A thinking budget for DeepSeek-R1."""

    __module__ = "sglang_lp.builtins"


class DeepSeekR1DistillQwenThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="DeepSeek-R1-Distill-Qwen",
        start="<think>",
        start_ids=(151648,),
        end="</think>",
        end_ids=(151649,),
        new_line_id=None,
        source="four independent public programs that hold them as constants",
    ),
):
    """A thinking budget for DeepSeek-R1-Distill-Qwen."""

    __module__ = "sglang_lp.builtins"


class DeepSeekV4ThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="DeepSeek-V4, DeepSeek-V4.1",
        start="<think>",
        start_ids=(128821,),
        end="</think>",
        end_ids=(128822,),
        new_line_id=None,
        source="public tests that encode with the tokenizers of V4 and V4.1",
    ),
):
    """A thinking budget for DeepSeek-V4 and DeepSeek-V4.1."""

    __module__ = "sglang_lp.builtins"


class Glm4MoeThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="GLM-4.5, GLM-4.6, GLM-4.5V, GLM-4.6V",
        start="<think>",
        start_ids=(151350,),
        end="</think>",
        end_ids=(151351,),
        new_line_id=198,
        source=_SGLANG,
        tool_starts=("<tool_call>",),
    ),
):
    """A thinking budget for GLM-4.5, GLM-4.6, GLM-4.5V and GLM-4.6V."""

    __module__ = "sglang_lp.builtins"


class Glm5ThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="GLM-5 and later 5.x",
        start="<think>",
        start_ids=(154841,),
        end="</think>",
        end_ids=(154842,),
        new_line_id=198,
        source="PR 20275, run on GLM-5-FP8",
        tool_starts=("<tool_call>",),
    ),
):
    """A thinking budget for GLM-5 and later 5.x."""

    __module__ = "sglang_lp.builtins"


class KimiK2ThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="Kimi-K2-Thinking, Kimi-K2.5, Kimi-K2.6",
        start="<think>",
        start_ids=(163606,),
        end="</think>",
        end_ids=(163607,),
        new_line_id=198,
        source="tinker-cookbook PR 784, from K2.5 and K2.6; ai-dynamo/dynamo PR 9227",
        tool_starts=("<|tool_calls_section_begin|>",),
    ),
):
    """A thinking budget for Kimi-K2-Thinking, Kimi-K2.5 and Kimi-K2.6."""

    __module__ = "sglang_lp.builtins"


class InklingThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="Inkling",
        start="<|content_thinking|>",
        start_ids=(200008,),
        end="<|end_message|>",
        end_ids=(200010,),
        new_line_id=198,
        source=f"{_SGLANG} and parser/inkling_tokenizer.py",
        native=True,
    ),
):
    """A thinking budget for Inkling."""

    __module__ = "sglang_lp.builtins"


class Hy3ThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="Hy3, Hy3-preview",
        start="<think>",
        start_ids=(120029,),
        end="</think>",
        end_ids=(120030,),
        new_line_id=None,
        source="tokenizer_config.json of Hy3-preview",
        tool_starts=("<tool_calls>",),
    ),
):
    """A thinking budget for Hy3 and Hy3-preview."""

    __module__ = "sglang_lp.builtins"


class HunyuanA13BThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="Hunyuan-A13B",
        start="<think>\n",
        start_ids=(14023, 771, 397),
        end="\n</think>\n<answer>\n",
        end_ids=(198, 524, 27963, 397, 27, 9399, 397),
        new_line_id=None,  # the end brings its own
        source="vLLM 0.33, reasoning/hunyuan_a13b_reasoning_parser.py",
        tool_starts=("<tool_calls>",),
    ),
):
    """A thinking budget for Hunyuan-A13B, whose delimiters have several tokens."""

    __module__ = "sglang_lp.builtins"


class GptOssThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor,
    family=Family(
        models="gpt-oss-20b, gpt-oss-120b",
        start="<|channel|>analysis<|message|>",
        start_ids=(200005, 35644, 200008),
        end="<|end|>",
        end_ids=(200007,),
        new_line_id=None,  # harmony messages end without one
        source="several independent public programs that hold them as constants",
    ),
):
    """A thinking budget for gpt-oss.

    It closes the analysis message with ``<|end|>``; the model itself starts the next message.
    """

    __module__ = "sglang_lp.builtins"
