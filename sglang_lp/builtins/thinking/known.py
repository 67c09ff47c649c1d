"""The thinking delimiters of the known model families."""

from __future__ import annotations

from typing import NamedTuple

#: Texts that open a tool call, and so end a block, in the reasoning parsers of SGLang 0.5.23; for
#: models of which only the tokenizer is known.
TOOL_STARTS = ("<tool_call>", "<tool_calls>", "<|tool_calls_section_begin|>")


class Family(NamedTuple):
    """The thinking delimiters of a model family.

    Attributes:
        processor: Name of the family's built-in class.
        models: Names of the models.
        start: Opens a thinking block. A tokenizer may add a suffix, ``<think:...>``.
        start_ids: The tokens of ``start``, usually one.
        end: Closes a thinking block.
        end_ids: The tokens of ``end``.
        new_line_id: The token of a single newline, forced before ``end`` as SGLang does;
            ``None`` if it is not known or the family writes no newline there.
        source: Where the figures come from. Issues and pull requests without a repository are
            those of sgl-project/sglang.
        tool_starts: Texts that open a tool call, and so end a block.
        native: Whether the ids are the model's own alphabet. Its tokenizer may have other ids for
            the texts, which does not make these wrong.
    """

    processor: str
    models: str
    start: str
    start_ids: tuple[int, ...]
    end: str
    end_ids: tuple[int, ...]
    new_line_id: int | None
    source: str
    tool_starts: tuple[str, ...] = ()
    native: bool = False


_SGLANG = "SGLang 0.5.23, sampling/custom_logit_processor.py"

QWEN3 = Family(
    processor="Qwen3ThinkingBudgetLogitProcessor",
    models="Qwen3, Qwen3-2507 Thinking",
    start="<think>",
    start_ids=(151667,),
    end="</think>",
    end_ids=(151668,),
    new_line_id=198,
    source=f"{_SGLANG}; end: QwenLM/Qwen3, README and docs/source/getting_started/quickstart.md",
    tool_starts=("<tool_call>",),
)

QWEN3_5 = Family(
    processor="Qwen3_5ThinkingBudgetLogitProcessor",
    models="Qwen3.5, Qwen3.6, Qwen3.8",
    start="<think>",
    start_ids=(248068,),
    end="</think>",
    end_ids=(248069,),
    new_line_id=198,
    source="PR 20029, read from the tokenizer; issue 25536",
    tool_starts=("<tool_call>",),
)

DEEPSEEK_R1 = Family(
    processor="DeepSeekR1ThinkingBudgetLogitProcessor",
    models="DeepSeek-R1, DeepSeek-R1-0528",
    start="<think>",
    start_ids=(128798,),
    end="</think>",
    end_ids=(128799,),
    new_line_id=201,
    source=_SGLANG,
)

DEEPSEEK_R1_DISTILL_QWEN = Family(
    processor="DeepSeekR1DistillQwenThinkingBudgetLogitProcessor",
    models="DeepSeek-R1-Distill-Qwen",
    start="<think>",
    start_ids=(151648,),
    end="</think>",
    end_ids=(151649,),
    new_line_id=None,
    source="four independent public programs that hold them as constants",
)

DEEPSEEK_V4 = Family(
    processor="DeepSeekV4ThinkingBudgetLogitProcessor",
    models="DeepSeek-V4, DeepSeek-V4.1",
    start="<think>",
    start_ids=(128821,),
    end="</think>",
    end_ids=(128822,),
    new_line_id=None,
    source="public tests that encode with the tokenizers of V4 and V4.1",
)

GLM4_MOE = Family(
    processor="Glm4MoeThinkingBudgetLogitProcessor",
    models="GLM-4.5, GLM-4.6, GLM-4.5V, GLM-4.6V",
    start="<think>",
    start_ids=(151350,),
    end="</think>",
    end_ids=(151351,),
    new_line_id=198,
    source=_SGLANG,
    tool_starts=("<tool_call>",),
)

GLM5 = Family(
    processor="Glm5ThinkingBudgetLogitProcessor",
    models="GLM-5 and later 5.x",
    start="<think>",
    start_ids=(154841,),
    end="</think>",
    end_ids=(154842,),
    new_line_id=198,
    source="PR 20275, run on GLM-5-FP8",
    tool_starts=("<tool_call>",),
)

KIMI_K2 = Family(
    processor="KimiK2ThinkingBudgetLogitProcessor",
    models="Kimi-K2-Thinking, Kimi-K2.5, Kimi-K2.6",
    start="<think>",
    start_ids=(163606,),
    end="</think>",
    end_ids=(163607,),
    new_line_id=198,
    source="tinker-cookbook PR 784, from K2.5 and K2.6; ai-dynamo/dynamo PR 9227",
    tool_starts=("<|tool_calls_section_begin|>",),
)

INKLING = Family(
    processor="InklingThinkingBudgetLogitProcessor",
    models="Inkling",
    start="<|content_thinking|>",
    start_ids=(200008,),
    end="<|end_message|>",
    end_ids=(200010,),
    new_line_id=198,
    source=f"{_SGLANG} and parser/inkling_tokenizer.py",
    native=True,
)

HY3 = Family(
    processor="Hy3ThinkingBudgetLogitProcessor",
    models="Hy3, Hy3-preview",
    start="<think>",
    start_ids=(120029,),
    end="</think>",
    end_ids=(120030,),
    new_line_id=None,
    source="tokenizer_config.json of Hy3-preview",
    tool_starts=("<tool_calls>",),
)

HUNYUAN_A13B = Family(
    processor="HunyuanA13BThinkingBudgetLogitProcessor",
    models="Hunyuan-A13B",
    start="<think>\n",
    start_ids=(14023, 771, 397),
    end="\n</think>\n<answer>\n",
    end_ids=(198, 524, 27963, 397, 27, 9399, 397),
    new_line_id=None,  # the end brings its own
    source="vLLM 0.33, reasoning/hunyuan_a13b_reasoning_parser.py",
    tool_starts=("<tool_calls>",),
)

GPT_OSS = Family(
    processor="GptOssThinkingBudgetLogitProcessor",
    models="gpt-oss-20b, gpt-oss-120b",
    start="<|channel|>analysis<|message|>",
    start_ids=(200005, 35644, 200008),
    end="<|end|>",
    end_ids=(200007,),
    new_line_id=None,  # harmony messages end without one
    source="several independent public programs that hold them as constants",
)

#: The families that have a class. A family whose ids were never checked has none: its ids come
#: from the served tokenizer, see :mod:`sglang_lp.builtins.thinking.delimiters`.
FAMILIES = (
    QWEN3,
    QWEN3_5,
    DEEPSEEK_R1,
    DEEPSEEK_R1_DISTILL_QWEN,
    DEEPSEEK_V4,
    GLM4_MOE,
    GLM5,
    KIMI_K2,
    INKLING,
    HY3,
    HUNYUAN_A13B,
    GPT_OSS,
)
