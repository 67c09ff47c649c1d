"""The processors of the toolkit, under the names that are their wire format.

A processor's file may move; its name here may not, because the name is what a payload carries.
"""

from sglang_lp.builtins.disallowed_tokens import DisallowedTokensLogitsProcessor
from sglang_lp.builtins.forced_sequence import ForcedSequenceLogitProcessor
from sglang_lp.builtins.no_repeat_ngram import DeepseekOCRNoRepeatNGramLogitProcessor
from sglang_lp.builtins.thinking_budget import (
    DeepSeekR1ThinkingBudgetLogitProcessor,
    Glm4MoeThinkingBudgetLogitProcessor,
    InklingThinkingBudgetLogitProcessor,
    Qwen3ThinkingBudgetLogitProcessor,
    ThinkingBudgetLogitProcessor,
)

__all__ = [
    "DeepSeekR1ThinkingBudgetLogitProcessor",
    "DeepseekOCRNoRepeatNGramLogitProcessor",
    "DisallowedTokensLogitsProcessor",
    "ForcedSequenceLogitProcessor",
    "Glm4MoeThinkingBudgetLogitProcessor",
    "InklingThinkingBudgetLogitProcessor",
    "Qwen3ThinkingBudgetLogitProcessor",
    "ThinkingBudgetLogitProcessor",
]
