"""The processors of the toolkit, under the names that are their wire format.

A processor's file may move; its name here may not, because the name is what a payload carries.
"""

from sglang_lp.builtins.chain import ChainLogitProcessor
from sglang_lp.builtins.models.box_grammar import LocateAnythingBoxGrammarLogitProcessor
from sglang_lp.builtins.prompt.cite_from_prompt import CiteFromPromptLogitProcessor
from sglang_lp.builtins.repetition.dry import DRYLogitProcessor
from sglang_lp.builtins.repetition.loop_breaker import LoopBreakerLogitProcessor
from sglang_lp.builtins.repetition.no_repeat_ngram import DeepseekOCRNoRepeatNGramLogitProcessor
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
from sglang_lp.builtins.tokens.allowed_tokens import AllowedTokensLogitProcessor
from sglang_lp.builtins.tokens.disallowed_tokens import DisallowedTokensLogitsProcessor
from sglang_lp.builtins.tokens.gen_length import GenLengthLogitProcessor
from sglang_lp.builtins.tokens.min_length import MinLengthLogitProcessor
from sglang_lp.builtins.tokens.scheduled_bias import ScheduledBiasLogitProcessor
from sglang_lp.builtins.words.bad_words import BadWordsLogitProcessor
from sglang_lp.builtins.words.choice import ChoiceLogitProcessor
from sglang_lp.builtins.words.forced_sequence import ForcedSequenceLogitProcessor
from sglang_lp.builtins.words.forced_words import ForcedWordsLogitProcessor
from sglang_lp.builtins.words.script import ScriptLogitProcessor
from sglang_lp.builtins.words.trigger_phrase import TriggerPhraseLogitProcessor

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
