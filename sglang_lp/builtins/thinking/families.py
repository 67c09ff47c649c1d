"""A thinking budget for each model family whose delimiters are known by id.

The documentation and the contract tests of a class follow from its family's row in ``known``.
"""

from __future__ import annotations

from sglang_lp.builtins.thinking import known
from sglang_lp.builtins.thinking.budget import ThinkingBudgetLogitProcessor


class Qwen3ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor, family=known.QWEN3):
    """A thinking budget for Qwen3."""

    __module__ = "sglang_lp.builtins"


class Qwen3_5ThinkingBudgetLogitProcessor(  # noqa: N801 - not Qwen 35
    ThinkingBudgetLogitProcessor, family=known.QWEN3_5
):
    """A thinking budget for Qwen3.5, Qwen3.6 and Qwen3.8."""

    __module__ = "sglang_lp.builtins"


class DeepSeekR1ThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor, family=known.DEEPSEEK_R1
):
    """A thinking budget for DeepSeek-R1."""

    __module__ = "sglang_lp.builtins"


class DeepSeekR1DistillQwenThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor, family=known.DEEPSEEK_R1_DISTILL_QWEN
):
    """A thinking budget for DeepSeek-R1-Distill-Qwen."""

    __module__ = "sglang_lp.builtins"


class DeepSeekV4ThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor, family=known.DEEPSEEK_V4
):
    """A thinking budget for DeepSeek-V4 and DeepSeek-V4.1."""

    __module__ = "sglang_lp.builtins"


class Glm4MoeThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor, family=known.GLM4_MOE):
    """A thinking budget for GLM-4.5, GLM-4.6, GLM-4.5V and GLM-4.6V."""

    __module__ = "sglang_lp.builtins"


class Glm5ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor, family=known.GLM5):
    """A thinking budget for GLM-5 and later 5.x."""

    __module__ = "sglang_lp.builtins"


class KimiK2ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor, family=known.KIMI_K2):
    """A thinking budget for Kimi-K2-Thinking, Kimi-K2.5 and Kimi-K2.6."""

    __module__ = "sglang_lp.builtins"


class InklingThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor, family=known.INKLING):
    """A thinking budget for Inkling."""

    __module__ = "sglang_lp.builtins"


class Hy3ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor, family=known.HY3):
    """A thinking budget for Hy3 and Hy3-preview."""

    __module__ = "sglang_lp.builtins"


class HunyuanA13BThinkingBudgetLogitProcessor(
    ThinkingBudgetLogitProcessor, family=known.HUNYUAN_A13B
):
    """A thinking budget for Hunyuan-A13B, whose delimiters have several tokens."""

    __module__ = "sglang_lp.builtins"


class GptOssThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor, family=known.GPT_OSS):
    """A thinking budget for gpt-oss.

    It closes the analysis message with ``<|end|>``; the model itself starts the next message.
    """

    __module__ = "sglang_lp.builtins"
