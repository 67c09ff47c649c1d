"""Modules of the built-ins, each imported when its class is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["HOMES", "load"]

#: The module of each built-in, below this package.
HOMES = {
    "AllowedTokensLogitProcessor": "tokens.allowed_tokens",
    "BadWordsLogitProcessor": "words.bad_words",
    "BiasWordsLogitProcessor": "words.bias_words",
    "CatalogueLogitProcessor": "catalogue.items",
    "ChainLogitProcessor": "chain",
    "ChoiceLogitProcessor": "words.choice",
    "CiteFromPromptLogitProcessor": "prompt.cite_from_prompt",
    "DRYLogitProcessor": "repetition.dry",
    "DeepSeekR1DistillQwenThinkingBudgetLogitProcessor": "thinking.families",
    "DeepSeekR1ThinkingBudgetLogitProcessor": "thinking.families",
    "DeepSeekV4ThinkingBudgetLogitProcessor": "thinking.families",
    "DeepseekOCRNoRepeatNGramLogitProcessor": "repetition.no_repeat_ngram",
    "DisallowedTokensLogitsProcessor": "tokens.disallowed_tokens",
    "ForcedSequenceLogitProcessor": "words.forced_sequence",
    "ForcedWordsLogitProcessor": "words.forced_words",
    "GenLengthLogitProcessor": "tokens.gen_length",
    "Glm4MoeThinkingBudgetLogitProcessor": "thinking.families",
    "Glm5ThinkingBudgetLogitProcessor": "thinking.families",
    "GptOssThinkingBudgetLogitProcessor": "thinking.families",
    "HunyuanA13BThinkingBudgetLogitProcessor": "thinking.families",
    "Hy3ThinkingBudgetLogitProcessor": "thinking.families",
    "InklingThinkingBudgetLogitProcessor": "thinking.families",
    "KimiK2ThinkingBudgetLogitProcessor": "thinking.families",
    "LocateAnythingBoxGrammarLogitProcessor": "models.box_grammar",
    "LoopBreakerLogitProcessor": "repetition.loop_breaker",
    "MinLengthLogitProcessor": "tokens.min_length",
    "Qwen3ThinkingBudgetLogitProcessor": "thinking.families",
    "Qwen3_5ThinkingBudgetLogitProcessor": "thinking.families",
    "ScheduledBiasLogitProcessor": "tokens.scheduled_bias",
    "ScriptLogitProcessor": "words.script",
    "TemperatureLogitProcessor": "tokens.temperature",
    "ThinkingBudgetLogitProcessor": "thinking.budget",
    "ToolCallLimitLogitProcessor": "words.tool_calls",
    "TopNSigmaLogitProcessor": "tokens.top_n_sigma",
    "TriggerPhraseLogitProcessor": "words.trigger_phrase",
    "WatermarkLogitProcessor": "tokens.watermark",
}


def load(name: str) -> Any:
    """Return the class of a built-in.

    Args:
        name: A key of :data:`HOMES`.
    """
    return getattr(import_module(f"{__package__}.{HOMES[name]}"), name)
