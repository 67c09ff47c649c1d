"""Model families whose thinking delimiters are known by id, each with the source of its figures.

A family whose ids were never checked is not here: its ids come from the served tokenizer, by the
strings in :mod:`sglang_lp.builtins._delimiters`.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FAMILIES", "Family"]


class Family(NamedTuple):
    """How the models of a family write that they think.

    Attributes:
        models: Which models.
        processor: Name of the built-in class for them.
        start: What opens a thinking block. A tokenizer may add a suffix, ``<think:...>``.
        start_ids: The tokens of ``start``, usually one.
        end: What closes it.
        end_ids: The tokens of ``end``.
        new_line_id: The token of a single newline, forced before ``end`` as SGLang does;
            ``None`` if it is not known or the family writes none there.
        vocab_size: Number of logits in a row, from the model's configuration; ``None`` if it is
            not known.
        source: Where the figures come from. Issues and pull requests without a repository are
            those of sgl-project/sglang.
        native: Whether the ids are the model's own alphabet: its tokenizer may give the strings
            other ids, and says nothing about these.
    """

    models: str
    processor: str
    start: str
    start_ids: tuple[int, ...]
    end: str
    end_ids: tuple[int, ...]
    new_line_id: int | None
    vocab_size: int | None
    source: str
    native: bool = False


_SGLANG = "SGLang 0.5.23, sampling/custom_logit_processor.py"

QWEN3 = Family(
    "Qwen3, Qwen3-2507 Thinking",
    "Qwen3ThinkingBudgetLogitProcessor",
    "<think>",
    (151667,),
    "</think>",
    (151668,),
    198,
    151936,
    f"{_SGLANG}; end: QwenLM/Qwen3, README and docs/source/getting_started/quickstart.md",
)
QWEN3_5 = Family(
    "Qwen3.5, Qwen3.6",
    "Qwen3_5ThinkingBudgetLogitProcessor",
    "<think>",
    (248068,),
    "</think>",
    (248069,),
    198,
    248320,
    "PR 20029, read from the tokenizer; issue 25536",
)
DEEPSEEK_R1 = Family(
    "DeepSeek-R1, DeepSeek-R1-0528",
    "DeepSeekR1ThinkingBudgetLogitProcessor",
    "<think>",
    (128798,),
    "</think>",
    (128799,),
    201,
    129280,
    _SGLANG,
)
R1_DISTILL_QWEN = Family(
    "DeepSeek-R1-Distill-Qwen",
    "DeepSeekR1DistillQwenThinkingBudgetLogitProcessor",
    "<think>",
    (151648,),
    "</think>",
    (151649,),
    None,
    None,
    "four independent public programs that hold them as constants",
)
DEEPSEEK_V4 = Family(
    "DeepSeek-V4, DeepSeek-V4.1",
    "DeepSeekV4ThinkingBudgetLogitProcessor",
    "<think>",
    (128821,),
    "</think>",
    (128822,),
    None,
    129280,
    "public tests that encode with the tokenizers of V4 and V4.1; vocabulary: SGLang 0.5.23",
)
GLM4_MOE = Family(
    "GLM-4.5, GLM-4.6, GLM-4.5V, GLM-4.6V",
    "Glm4MoeThinkingBudgetLogitProcessor",
    "<think>",
    (151350,),
    "</think>",
    (151351,),
    198,
    151552,
    _SGLANG,
)
GLM5 = Family(
    "GLM-5 and later 5.x",
    "Glm5ThinkingBudgetLogitProcessor",
    "<think>",
    (154841,),
    "</think>",
    (154842,),
    198,
    154880,
    "PR 20275, run on GLM-5-FP8; vocabulary: SGLang 0.5.23, configs/glm5_next.py",
)
KIMI_K2 = Family(
    "Kimi-K2-Thinking, Kimi-K2.5, Kimi-K2.6",
    "KimiK2ThinkingBudgetLogitProcessor",
    "<think>",
    (163606,),
    "</think>",
    (163607,),
    198,
    163840,
    "tinker-cookbook PR 784, from K2.5 and K2.6; ai-dynamo/dynamo PR 9227",
)
INKLING = Family(
    "Inkling",
    "InklingThinkingBudgetLogitProcessor",
    "<|content_thinking|>",
    (200008,),
    "<|end_message|>",
    (200010,),
    198,
    201024,
    f"{_SGLANG} and parser/inkling_tokenizer.py",
    native=True,
)
HY3 = Family(
    "Hy3, Hy3-preview",
    "Hy3ThinkingBudgetLogitProcessor",
    "<think>",
    (120029,),
    "</think>",
    (120030,),
    None,
    120832,
    "tokenizer_config.json of Hy3-preview; vocabulary: SGLang 0.5.23",
)
HUNYUAN_A13B = Family(
    "Hunyuan-A13B",
    "HunyuanA13BThinkingBudgetLogitProcessor",
    "<think>\n",
    (14023, 771, 397),
    "\n</think>\n<answer>\n",
    (198, 524, 27963, 397, 27, 9399, 397),
    None,  # the end brings its own
    None,
    "vLLM 0.33, reasoning/hunyuan_a13b_reasoning_parser.py",
)
GPT_OSS = Family(
    "gpt-oss-20b, gpt-oss-120b",
    "GptOssThinkingBudgetLogitProcessor",
    "<|channel|>analysis<|message|>",
    (200005, 35644, 200008),
    "<|end|>",
    (200007,),
    None,  # harmony messages end without one
    None,
    "several independent public programs that hold them as constants",
)

FAMILIES = (
    QWEN3,
    QWEN3_5,
    DEEPSEEK_R1,
    R1_DISTILL_QWEN,
    DEEPSEEK_V4,
    GLM4_MOE,
    GLM5,
    KIMI_K2,
    INKLING,
    HY3,
    HUNYUAN_A13B,
    GPT_OSS,
)
