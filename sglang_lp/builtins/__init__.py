"""The processors of the toolkit, under the names that are their wire format.

A processor's file may move; its name here may not, because the name is what a payload carries.
Each class is imported when its name is first used: a client loads the built-ins that it asks for.
"""

from typing import TYPE_CHECKING, Any

from sglang_lp.builtins.homes import HOMES, load

if TYPE_CHECKING:
    from sglang_lp.builtins.catalogue.items import CatalogueLogitProcessor
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
    from sglang_lp.builtins.tokens.temperature import TemperatureLogitProcessor
    from sglang_lp.builtins.tokens.top_n_sigma import TopNSigmaLogitProcessor
    from sglang_lp.builtins.tokens.watermark import WatermarkLogitProcessor
    from sglang_lp.builtins.words.bad_words import BadWordsLogitProcessor
    from sglang_lp.builtins.words.bias_words import BiasWordsLogitProcessor
    from sglang_lp.builtins.words.choice import ChoiceLogitProcessor
    from sglang_lp.builtins.words.forced_sequence import ForcedSequenceLogitProcessor
    from sglang_lp.builtins.words.forced_words import ForcedWordsLogitProcessor
    from sglang_lp.builtins.words.script import ScriptLogitProcessor
    from sglang_lp.builtins.words.tool_calls import ToolCallLimitLogitProcessor
    from sglang_lp.builtins.words.trigger_phrase import TriggerPhraseLogitProcessor

__all__ = [
    "AllowedTokensLogitProcessor",
    "BadWordsLogitProcessor",
    "BiasWordsLogitProcessor",
    "CatalogueLogitProcessor",
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
    "TemperatureLogitProcessor",
    "ThinkingBudgetLogitProcessor",
    "ToolCallLimitLogitProcessor",
    "TopNSigmaLogitProcessor",
    "TriggerPhraseLogitProcessor",
    "WatermarkLogitProcessor",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = load(name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
