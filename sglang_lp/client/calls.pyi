"""The calls of :func:`sglang_lp.attach`, for editors and type checkers.

Written from the schemas of the built-ins: ``.venv/bin/python -m scripts.calls``.
"""

from collections.abc import Collection
from typing import Any, Literal, overload

from sglang_lp.client.attachment import Attachment

@overload
def attach(processor: type[Any], /, **params: Any) -> Attachment:
    """A class of your own, or of another library."""

@overload
def attach(processor: list[Any] | tuple[Any, ...], /) -> Attachment:
    """Several processors, or attachments, for one request."""

@overload
def attach(
    processor: Literal["AllowedTokensLogitProcessor"],
    /,
    *,
    token_ids: Collection[int] | None = ...,
    texts: Collection[str] | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Set the logits of all tokens but the chosen ones to -inf at every step."""

@overload
def attach(
    processor: Literal["BadWordsLogitProcessor"],
    /,
    *,
    words: Collection[str] | None = ...,
    ignore_case: bool = ...,
    whole_words: bool = ...,
    normalize: bool = ...,
    across_prompt: bool = ...,
    eos_token_ids: Collection[int] | None = ...,
    token_ids: Collection[int] | None = ...,
    lengths: Collection[int] | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Keep words out of the output, whichever tokens would spell them."""

@overload
def attach(
    processor: Literal["BiasWordsLogitProcessor"],
    /,
    *,
    words: Collection[str],
    weights: Collection[float],
    max_times: int = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Make words likelier, whichever tokens spell them: names, terms, hot words."""

@overload
def attach(
    processor: Literal["CatalogueLogitProcessor"],
    /,
    *,
    catalogue: str,
    subset: Collection[str] = ...,
    exclude: Collection[int | str] = ...,
    only: Collection[int | str] | None = ...,
    trigger: str | None = ...,
    trigger_token_ids: Collection[int] | None = ...,
    max_items: int = ...,
    ends_answer: bool = ...,
    scores: Literal["among", "model"] = ...,
    eos_token_ids: Collection[int] | None = ...,
) -> Attachment:
    """Let the model write items of a catalogue: sequences of tokens that the operator listed."""

@overload
def attach(
    processor: Literal["ChainLogitProcessor"], /, *, chain: Collection[str], **links: Any
) -> Attachment:
    """Run several processors, the links, on one request."""

@overload
def attach(
    processor: Literal["ChoiceLogitProcessor"],
    /,
    *,
    choices: Collection[str] | None = ...,
    token_ids: Collection[int] | None = ...,
    lengths: Collection[int] | None = ...,
    eos_token_ids: Collection[int] | None = ...,
    pick: Literal["likeliest", "sampled", "tokens"] | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Let the model generate exactly one of several texts, or of several token sequences."""

@overload
def attach(
    processor: Literal["CiteFromPromptLogitProcessor"],
    /,
    *,
    bias: float = ...,
    eos_token_ids: Collection[int] | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Make every token that is in the prompt likelier, or less likely."""

@overload
def attach(
    processor: Literal["DRYLogitProcessor"],
    /,
    *,
    dry_multiplier: float = ...,
    dry_base: float = ...,
    dry_allowed_length: int = ...,
    dry_penalty_last_n: int = ...,
    dry_sequence_breakers: Collection[str] | None = ...,
    dry_sequence_breaker_ids: Collection[int] | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Penalise each token that would continue a repetition, more for a longer one."""

@overload
def attach(
    processor: Literal[
        "DeepSeekR1DistillQwenThinkingBudgetLogitProcessor",
        "DeepSeekR1ThinkingBudgetLogitProcessor",
        "DeepSeekV4ThinkingBudgetLogitProcessor",
        "Glm4MoeThinkingBudgetLogitProcessor",
        "Glm5ThinkingBudgetLogitProcessor",
        "GptOssThinkingBudgetLogitProcessor",
        "HunyuanA13BThinkingBudgetLogitProcessor",
        "Hy3ThinkingBudgetLogitProcessor",
        "InklingThinkingBudgetLogitProcessor",
        "KimiK2ThinkingBudgetLogitProcessor",
        "Qwen3ThinkingBudgetLogitProcessor",
        "Qwen3_5ThinkingBudgetLogitProcessor",
        "ThinkingBudgetLogitProcessor",
    ],
    /,
    *,
    thinking_budget: int | None = ...,
    total_thinking_tokens: int | None = ...,
    at_limit: Literal["close", "stop"] = ...,
    max_pattern_size: int | None = ...,
    min_pattern_size: int = ...,
    min_count: int = ...,
    min_new_share: float | None = ...,
    ngram_size: int = ...,
    window_size: int = ...,
    soft_thinking_budget: int | None = ...,
    soft_top_n: int = ...,
    min_thinking_tokens: int = ...,
    wait_token_id: int | None = ...,
    max_waits: int = ...,
    closing: str | None = ...,
    closing_token_ids: Collection[int] = ...,
    eos_token_ids: Collection[int] = ...,
    min_answer_tokens: int = ...,
    answer_room: int = ...,
    thinking_start_token_id: int | None = ...,
    thinking_end_token_id: int | None = ...,
    thinking_start_token_ids: Collection[int] | None = ...,
    thinking_end_token_ids: Collection[int] | None = ...,
    thinking_start: str | None = ...,
    thinking_end: str | None = ...,
    new_line_token_id: int | None = ...,
    tool_start_token_ids: Collection[int] | None = ...,
    force_reasoning: bool = ...,
) -> Attachment:
    """Close the thinking block after a number of tokens."""

@overload
def attach(
    processor: Literal["DeepseekOCRNoRepeatNGramLogitProcessor"],
    /,
    *,
    ngram_size: int | None = ...,
    window_size: int | None = ...,
    whitelist_token_ids: Collection[int] | None = ...,
    preset: Literal[
        "deepseek-ocr",
        "deepseek-ocr-pdf",
        "deepseek-ocr-eval",
        "deepseek-ocr-2",
        "deepseek-ocr-2-pdf",
        "deepseek-ocr-2-eval",
        "unlimited-ocr",
        "unlimited-ocr-multi-page",
    ]
    | None = ...,
    scope: Literal["all", "output"] = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Ban every token that would repeat an n-gram of the last window_size tokens."""

@overload
def attach(
    processor: Literal["DisallowedTokensLogitsProcessor"],
    /,
    *,
    token_ids: Collection[int] | None = ...,
    texts: Collection[str] | None = ...,
    unmapped: bool = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Set the logits of chosen tokens to -inf at every step."""

@overload
def attach(
    processor: Literal["ForcedSequenceLogitProcessor"],
    /,
    *,
    text: str | None = ...,
    token_ids: Collection[int] | None = ...,
    eos_token_ids: Collection[int] | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Force the answer to begin with a given text, or a given sequence of tokens."""

@overload
def attach(
    processor: Literal["ForcedWordsLogitProcessor"],
    /,
    *,
    words: Collection[str] | None = ...,
    token_ids: Collection[int] | None = ...,
    lengths: Collection[int] | None = ...,
    eos_token_ids: Collection[int] | None = ...,
    within_tokens: int | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Keep the answer from ending until it holds every one of several words."""

@overload
def attach(
    processor: Literal["GenLengthLogitProcessor"],
    /,
    *,
    bias: float,
    power: int = ...,
    complete_sentences: bool = ...,
    eos_token_ids: Collection[int] | None = ...,
    text: str | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Make the end of the answer likelier, or less likely, as the answer grows."""

@overload
def attach(
    processor: Literal["LocateAnythingBoxGrammarLogitProcessor"],
    /,
    *,
    box_start_token_id: int,
    box_end_token_id: int,
    coord_start_token_id: int,
    coord_end_token_id: int,
    none_token_id: int,
) -> Attachment:
    """Let the model write a <box> only as none, as a point or as a bounding box."""

@overload
def attach(
    processor: Literal["LoopBreakerLogitProcessor"],
    /,
    *,
    preset: Literal["reasoning", "code", "structured-output"] | None = ...,
    max_pattern_size: int | None = ...,
    min_count: int | None = ...,
    min_pattern_size: int | None = ...,
    min_new_share: float | None = ...,
    ngram_size: int | None = ...,
    window_size: int | None = ...,
    action: Literal["ban", "end", "truncate"] = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """End a loop: the same tokens again and again at the end of the output."""

@overload
def attach(
    processor: Literal["MinLengthLogitProcessor"],
    /,
    *,
    min_tokens: int,
    eos_token_ids: Collection[int] | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Keep the end-of-sequence tokens out of the first min_tokens generated tokens."""

@overload
def attach(
    processor: Literal["ScheduledBiasLogitProcessor"],
    /,
    *,
    token_ids: Collection[int],
    bias: float | None = ...,
    final_bias: float | None = ...,
    start: int = ...,
    end: int | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Add to the logits of chosen tokens, or ban them, between two positions of the answer."""

@overload
def attach(
    processor: Literal["ScriptLogitProcessor"],
    /,
    *,
    scripts: Collection[str],
    mode: Literal["allow", "ban"],
    thinking_start: str | None = ...,
    thinking_end: str | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Keep the letters of some scripts out of the output, or of all others."""

@overload
def attach(
    processor: Literal["TemperatureLogitProcessor"],
    /,
    *,
    temperature: float,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Sample one phase of the answer at a temperature of its own."""

@overload
def attach(
    processor: Literal["ToolCallLimitLogitProcessor"],
    /,
    *,
    max_tool_calls: int,
    tool_call_starts: Collection[str] | None = ...,
    tool_call_end: str | None = ...,
    tool_block_end: str | None = ...,
    json_lines: bool = ...,
    eos_token_ids: Collection[int] | None = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """End the answer after a number of tool calls."""

@overload
def attach(
    processor: Literal["TopNSigmaLogitProcessor"],
    /,
    *,
    top_n_sigma: float = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Keep only tokens whose logit is near the largest: top-n-sigma sampling."""

@overload
def attach(
    processor: Literal["TriggerPhraseLogitProcessor"],
    /,
    *,
    phrase: str | None = ...,
    phrase_token_ids: Collection[int] | None = ...,
    trigger: str | None = ...,
    trigger_token_ids: Collection[int] | None = ...,
    before_token_ids: Collection[int] | None = ...,
    max_times: int = ...,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Force a phrase after each trigger that the model generates, or before it ends its answer."""

@overload
def attach(
    processor: Literal["WatermarkLogitProcessor"],
    /,
    *,
    where: Literal["answer", "everywhere", "thinking"] | None = ...,
) -> Attachment:
    """Watermark an answer, so that a test with the key tells that the model wrote it."""
