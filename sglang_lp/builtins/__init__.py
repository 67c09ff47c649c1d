"""The processors of the toolkit, under the names that are their wire format.

A processor's file may move; its name here may not, because the name is what a payload carries.
"""

from sglang_lp.builtins.allowed_tokens import AllowedTokensLogitProcessor
from sglang_lp.builtins.bad_words import BadWordsLogitProcessor
from sglang_lp.builtins.box_grammar import LocateAnythingBoxGrammarLogitProcessor
from sglang_lp.builtins.chain import ChainLogitProcessor
from sglang_lp.builtins.choice import ChoiceLogitProcessor
from sglang_lp.builtins.cite_from_prompt import CiteFromPromptLogitProcessor
from sglang_lp.builtins.disallowed_tokens import DisallowedTokensLogitsProcessor
from sglang_lp.builtins.dry import DRYLogitProcessor
from sglang_lp.builtins.forced_sequence import ForcedSequenceLogitProcessor
from sglang_lp.builtins.forced_words import ForcedWordsLogitProcessor
from sglang_lp.builtins.gen_length import GenLengthLogitProcessor
from sglang_lp.builtins.loop_breaker import LoopBreakerLogitProcessor
from sglang_lp.builtins.min_length import MinLengthLogitProcessor
from sglang_lp.builtins.no_repeat_ngram import DeepseekOCRNoRepeatNGramLogitProcessor
from sglang_lp.builtins.scheduled_bias import ScheduledBiasLogitProcessor
from sglang_lp.builtins.script import ScriptLogitProcessor
from sglang_lp.builtins.thinking.budget import ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking.families import (
    DeepSeekR1DistillQwenThinkingBudgetLogitProcessor,
    DeepSeekR1ThinkingBudgetLogitProcessor,
    DeepSeekV4ThinkingBudgetLogitProcessor,
    Glm4MoeThinkingBudgetLogitProcessor,
    Glm5ThinkingBudgetLogitProcessor,
    GptOssThinkingBudgetLogitProcessor,
    HunyuanA13BThinkingBudgetLogitProcessor,
    Hy3ThinkingBudgetLogitProcessor,
    InklingThinkingBudgetLogitProcessor,
    KimiK2ThinkingBudgetLogitProcessor,
    Qwen3_5ThinkingBudgetLogitProcessor,
    Qwen3ThinkingBudgetLogitProcessor,
)
from sglang_lp.builtins.trigger_phrase import TriggerPhraseLogitProcessor

__all__ = [
    "AllowedTokensLogitProcessor",
    "BadWordsLogitProcessor",
    "ChainLogitProcessor",
    "ChoiceLogitProcessor",
    "CiteFromPromptLogitProcessor",
    "DRYLogitProcessor",
    "DeepSeekR1DistillQwenThinkingBudgetLogitProcessor",
    "DeepSeekR1ThinkingBudgetLogitProcessor",
    "DeepSeekV4ThinkingBudgetLogitProcessor",
    "DeepseekOCRNoRepeatNGramLogitProcessor",
    "DisallowedTokensLogitsProcessor",
    "ForcedSequenceLogitProcessor",
    "ForcedWordsLogitProcessor",
    "GenLengthLogitProcessor",
    "Glm4MoeThinkingBudgetLogitProcessor",
    "Glm5ThinkingBudgetLogitProcessor",
    "GptOssThinkingBudgetLogitProcessor",
    "HunyuanA13BThinkingBudgetLogitProcessor",
    "Hy3ThinkingBudgetLogitProcessor",
    "InklingThinkingBudgetLogitProcessor",
    "KimiK2ThinkingBudgetLogitProcessor",
    "LocateAnythingBoxGrammarLogitProcessor",
    "LoopBreakerLogitProcessor",
    "MinLengthLogitProcessor",
    "Qwen3ThinkingBudgetLogitProcessor",
    "Qwen3_5ThinkingBudgetLogitProcessor",
    "ScheduledBiasLogitProcessor",
    "ScriptLogitProcessor",
    "ThinkingBudgetLogitProcessor",
    "TriggerPhraseLogitProcessor",
]
