"""Thinking budgets for model families whose delimiters are known."""

from __future__ import annotations

from sglang_lp.builtins import _families as families
from sglang_lp.builtins.thinking_budget import ThinkingBudgetLogitProcessor


class Qwen3ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for Qwen3."""

    __module__ = "sglang_lp.builtins"
    family = families.QWEN3


class Qwen3_5ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):  # noqa: N801 - not Qwen 35
    """A thinking budget for Qwen3.5 and Qwen3.6."""

    __module__ = "sglang_lp.builtins"
    family = families.QWEN3_5


class DeepSeekR1ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for DeepSeek-R1."""

    __module__ = "sglang_lp.builtins"
    family = families.DEEPSEEK_R1


class DeepSeekR1DistillQwenThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for DeepSeek-R1-Distill-Qwen."""

    __module__ = "sglang_lp.builtins"
    family = families.R1_DISTILL_QWEN


class DeepSeekV4ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for DeepSeek-V4 and DeepSeek-V4.1."""

    __module__ = "sglang_lp.builtins"
    family = families.DEEPSEEK_V4


class Glm4MoeThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for GLM-4.5, GLM-4.6, GLM-4.5V and GLM-4.6V."""

    __module__ = "sglang_lp.builtins"
    family = families.GLM4_MOE


class Glm5ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for GLM-5 and later 5.x."""

    __module__ = "sglang_lp.builtins"
    family = families.GLM5


class KimiK2ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for Kimi-K2-Thinking, Kimi-K2.5 and Kimi-K2.6."""

    __module__ = "sglang_lp.builtins"
    family = families.KIMI_K2


class InklingThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for Inkling."""

    __module__ = "sglang_lp.builtins"
    family = families.INKLING


class Hy3ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for Hy3 and Hy3-preview."""

    __module__ = "sglang_lp.builtins"
    family = families.HY3


class HunyuanA13BThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for Hunyuan-A13B, whose delimiters have several tokens."""

    __module__ = "sglang_lp.builtins"
    family = families.HUNYUAN_A13B


class GptOssThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for gpt-oss.

    It closes the analysis message with ``<|end|>``; the model itself starts the next message.
    """

    __module__ = "sglang_lp.builtins"
    family = families.GPT_OSS
