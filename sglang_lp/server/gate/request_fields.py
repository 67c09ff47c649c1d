"""The table of SGLang's own request fields: ranges, and effects on a row.

Every field of every class in :data:`CLASSES` is in the table once: a row of :data:`BODY` or
:data:`SAMPLING` says what the gates check, the other fields are grouped by class. A test compares
the table with the classes of each supported SGLang (0.5.20 to 0.5.23).

A range is the one that SGLang means where float32 can hold it: no value of a field makes a logit
infinite or not a number, alone or together with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

#: The greatest number of float32, and the least that it holds with its full precision.
FLOAT_MAX, FLOAT_TINY = 3.4028234663852886e38, 1.1754943508222875e-38
#: The least positive temperature that SGLang does not take for 0, and so the least divisor.
_EPSILON = 1e-6
#: With the least divisor a logit of this size stays finite.
MAX_BIAS = 1e30
#: Most characters of one stop string: SGLang decodes as many tokens at each step.
MAX_STOP = 1_024
#: Most characters of an id or a key, which SGLang sends along with each text and copy.
MAX_KEY = 1_024
#: Most stop strings and most patterns: SGLang's own limit, which it checks once they are parsed.
MAX_STOPS = 32

#: Most characters of a regular expression, in a schema of all of its patterns; of an EBNF grammar;
#: and of a schema. Time and memory to compile the first two grow with their square: 200,000
#: characters of ``a?`` filled 24 GB.
MAX_REGEX, MAX_EBNF, MAX_SCHEMA = 16_384, 32_768, 1_048_576

_INT32, _INT64 = 2**31 - 1, 2**63 - 1
Natural = Annotated[int, Meta(ge=0, le=_INT32)]
Positive = Annotated[int, Meta(ge=1, le=_INT32)]
Whole = Annotated[int, Meta(ge=-(2**63), le=_INT64)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Finite = Annotated[float, Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
Key = Annotated[str, Meta(max_length=MAX_KEY)]
Stop = Annotated[str, Meta(max_length=MAX_STOP)]
Stops = Annotated[list[Stop], Meta(max_length=MAX_STOPS)]


class Session(msgspec.Struct, forbid_unknown_fields=True):
    """SGLang's ``session_params``."""

    id: Key | None = None
    rid: Key | None = None
    offset: Whole | None = None
    replace: bool | None = None
    drop_previous_output: bool | None = None


class Effect(StrEnum):
    """The effect of a field on a row of logits."""

    NOTHING = "nothing"
    BEFORE = "before the edits"
    AFTER = "after the edits"


class FieldRow(NamedTuple):
    """Fields of one type and range.

    Attributes:
        names: Their names, separated by spaces.
        type: msgspec's type of the value for one text; ``None`` and leaving it out are allowed.
        effect: What the fields do to a row.
        each: Whether a list of texts may have a list of values, one for each text.
        vocabulary: Whether the gates compare the value with the served vocabulary as well.
    """

    names: str
    type: Any
    effect: Effect = Effect.NOTHING
    each: bool = False
    vocabulary: bool = False


#: Fields of one text that are a grammar, of which SGLang takes one.
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")

#: Fields of one text's ``sampling_params``.
SAMPLING = (
    FieldRow("temperature", Annotated[float, Meta(ge=0, le=FLOAT_MAX)], Effect.AFTER),
    FieldRow("top_p", Annotated[float, Meta(ge=FLOAT_TINY, le=1)], Effect.AFTER),
    FieldRow("min_p", Annotated[float, Meta(ge=0, le=1)], Effect.AFTER),
    FieldRow("top_k", Annotated[int, Meta(ge=-1, le=_INT32)], Effect.AFTER),
    FieldRow("sampling_seed", Whole, Effect.AFTER),
    FieldRow("frequency_penalty presence_penalty", Penalty, Effect.BEFORE),
    FieldRow("repetition_penalty", Annotated[float, Meta(ge=_EPSILON, le=2)], Effect.BEFORE),
    FieldRow(
        "logit_bias",
        dict[str, Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]],
        Effect.BEFORE,
        vocabulary=True,
    ),
    FieldRow("min_new_tokens", Natural, Effect.BEFORE),
    FieldRow("stop_token_ids", list[Natural | None], Effect.BEFORE, vocabulary=True),
    FieldRow(
        "json_schema structural_tag", Annotated[str, Meta(max_length=MAX_SCHEMA)], Effect.BEFORE
    ),
    FieldRow("regex", Annotated[str, Meta(max_length=MAX_REGEX)], Effect.BEFORE),
    FieldRow("ebnf", Annotated[str, Meta(max_length=MAX_EBNF)], Effect.BEFORE),
    FieldRow("ebnf_full_assistant", bool, Effect.BEFORE),
    FieldRow("stop stop_regex", Stop | Stops),
    FieldRow("max_new_tokens", Natural),
    FieldRow("n stream_interval beam_width", Positive),
    FieldRow("ignore_eos skip_special_tokens spaces_between_special_tokens no_stop_trim", bool),
    # Checked elsewhere: by processors, and by SGLang as it reads them.
    FieldRow("custom_params watermark", Any),
    # SGLang makes them of other fields.
    FieldRow("stop_strs stop_regex_strs stop_str_max_len stop_regex_max_len is_normalized", None),
)

#: Fields of a body that SGLang's endpoints and ``Engine`` make for the tokenizer's process.
BODY = (
    FieldRow("rid extra_key cache_salt lora_path lora_id", Key, each=True),
    FieldRow("text", str, each=True),
    FieldRow("input_ids", Any, each=True, vocabulary=True),
    FieldRow("sampling_params", Any, each=True),
    FieldRow("return_logprob return_sampling_mask", bool, each=True),
    FieldRow("sampling_logprobs_mode", Literal["selected", "support"], each=True),
    FieldRow("logprob_start_len", Annotated[int, Meta(ge=-1, le=_INT32)], each=True),
    FieldRow("top_logprobs_num", Natural, each=True, vocabulary=True),
    FieldRow("token_ids_logprob", list[Natural], each=True, vocabulary=True),
    FieldRow("return_hidden_states", bool | str, each=True),
    # Positions in the prompt, compared with it once it is tokenized.
    FieldRow("token_indices_to_pool multi_item_delimiter_indices", list[Natural], each=True),
    FieldRow("bootstrap_host bootstrap_pair_key", Key, each=True),
    FieldRow("bootstrap_port decode_tp_size", Natural, each=True),
    FieldRow("bootstrap_room", Annotated[int, Meta(ge=0, le=_INT64)], each=True),
    FieldRow("routed_dp_rank data_parallel_rank disagg_prefill_dp_rank", Whole),
    FieldRow("routed_experts_start_len embed_override_token_id", Natural),
    FieldRow("max_thinking_tokens priority dimensions", Whole),
    FieldRow("max_dynamic_patch min_dynamic_patch", Natural),
    FieldRow("image_max_dynamic_patch video_max_dynamic_patch", Natural),
    FieldRow("session_id routing_key conversation_id", Key),
    FieldRow("session_params", Session),
    FieldRow("custom_labels", dict[str, Key]),
    FieldRow("external_trace_header", dict[str, str]),
    FieldRow("received_time", Finite),
    FieldRow("stream log_metrics background require_reasoning no_logs use_audio_in_video", bool),
    FieldRow(
        "return_text_in_logprobs return_flat_raw_top_logprobs return_entropy return_bytes", bool
    ),
    FieldRow("return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64", bool),
    FieldRow("return_routed_experts return_indexer_topk return_prompt_token_ids", bool),
    FieldRow("return_pooled_hidden_states is_cross_encoder_request need_wait_for_mm_inputs", bool),
    # SGLang's processes tell each other.
    FieldRow("http_worker_ipc num_items_assigned encoder_urls", None),
)


class Owner(NamedTuple):
    """One of SGLang's classes, with the fields that have no row of their own.

    Attributes:
        path: The class, as ``module.Class``.
        rows: The rows that its fields share by name.
        routes: Routes with such a body.
        renamed: A client's name for a field -> the names of its rows, separated by spaces.
        unchecked: Fields without a check of ours, separated by spaces.
    """

    path: str
    rows: tuple[FieldRow, ...] = ()
    routes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = {}
    unchecked: str = ""


_SRT = "sglang.srt."
_IO, _OPENAI = _SRT + "managers.io_struct.", _SRT + "entrypoints.openai.protocol."
_MEDIA = (
    "image_data video_data audio_data modalities mm_hashes mm_content_hashes "
    "video_config images_config mm_processor_kwargs input_embeds"
)
_BOTH = (*BODY, *SAMPLING)
#: Fields that only SGLang's front end reads: the answer's form, the chat template and tools.
_FORM = "model user stream_options return_cached_tokens_details return_spec_tokens_details"

#: SGLang's request classes.
CLASSES = (
    Owner(
        _IO + "GenerateReqInput",
        BODY,
        ("/generate", "/vertex_generate"),
        unchecked=f"{_MEDIA} watermark custom_logit_processor positional_embed_overrides kv_hints",
    ),
    Owner(
        _IO + "EmbeddingReqInput",
        BODY,
        ("/encode", "/classify"),
        unchecked="image_data video_data audio_data modalities input_embeds embed_overrides "
        "positional_embed_overrides decision_layout",
    ),
    Owner(_SRT + "sampling.sampling_params.SamplingParams", SAMPLING),
    Owner(_IO + "SessionParams", unchecked="id rid offset replace drop_previous_output"),
    Owner(
        _IO + "TokenizedGenerateReqInput",
        BODY,
        unchecked="input_text mm_inputs token_type_ids time_stats pp_prefetch_ticketed lora_name "
        "input_embeds custom_logit_processor positional_embed_overrides kv_hints",
    ),
    Owner(
        _IO + "TokenizedEmbeddingReqInput",
        BODY,
        unchecked="input_text mm_inputs token_type_ids time_stats lora_name decision_layout "
        "positional_embed_overrides",
    ),
    Owner(
        _OPENAI + "ChatCompletionRequest",
        _BOTH,
        ("/v1/chat/completions", "/invocations"),
        {
            "max_tokens": "max_new_tokens",
            "max_completion_tokens": "max_new_tokens",
            "min_tokens": "min_new_tokens",
            "seed": "sampling_seed",
            "logprobs": "return_logprob",
            "top_logprobs": "top_logprobs_num",
            "response_format": "json_schema",
            "messages": "text",
        },
        f"{_FORM} tools tool_choice parallel_tool_calls return_token_ids return_meta_info "
        "return_input_ids_in_sglext return_output_ids_in_sglext reasoning_effort thinking task "
        "continue_final_message separate_reasoning stream_reasoning chat_template_kwargs "
        "video_config images_config mm_processor_kwargs custom_logit_processor",
    ),
    Owner(
        _OPENAI + "CompletionRequest",
        _BOTH,
        ("/v1/completions",),
        {
            "prompt": "text input_ids",
            "max_tokens": "max_new_tokens",
            "min_tokens": "min_new_tokens",
            "seed": "sampling_seed",
            "logprobs": "top_logprobs_num",
            "response_format": "structural_tag",
        },
        f"{_FORM} best_of echo suffix return_token_ids images_config mm_processor_kwargs "
        "custom_logit_processor",
    ),
    Owner(
        _OPENAI + "ResponsesRequest",
        _BOTH,
        ("/v1/responses",),
        {
            "input": "text",
            "max_output_tokens": "max_new_tokens",
            "top_logprobs": "top_logprobs_num",
            "request_id": "rid",
        },
        "include instructions max_tool_calls metadata model parallel_tool_calls user "
        "previous_response_id reasoning service_tier store truncation tool_choice tools "
        "chat_template_kwargs",
    ),
    Owner(
        _SRT + "entrypoints.anthropic.protocol.AnthropicMessagesRequest",
        _BOTH,
        ("/v1/messages",),
        {"messages": "text", "max_tokens": "max_new_tokens", "stop_sequences": "stop"},
        "model metadata system thinking tool_choice tools output_config betas",
    ),
    Owner(
        _SRT + "entrypoints.anthropic.protocol.AnthropicCountTokensRequest",
        unchecked="model messages system thinking tool_choice tools output_config betas",
    ),
    Owner(
        _SRT + "entrypoints.ollama.protocol.OllamaChatRequest",
        _BOTH,
        ("/api/chat",),
        {
            "messages": "text",
            "options.num_predict": "max_new_tokens",
            "options.seed": "sampling_seed",
        },
        "model format options keep_alive think",
    ),
    Owner(
        _SRT + "entrypoints.ollama.protocol.OllamaGenerateRequest",
        _BOTH,
        ("/api/generate",),
        {
            "prompt": "text",
            "options.num_predict": "max_new_tokens",
            "options.seed": "sampling_seed",
        },
        "model suffix system template context raw format options keep_alive images think",
    ),
    Owner(_IO + "VertexGenerateReqInput", BODY, unchecked="instances parameters"),
    Owner(
        _OPENAI + "ScoringRequest",
        routes=("/v1/score",),
        renamed={
            "items": "text input_ids",
            "query": "text",
            "label_token_ids": "token_ids_logprob",
        },
        unchecked="embed_override_token_id query_embed_overrides item_embed_overrides "
        "apply_softmax temperature return_token_logprobs item_first return_pooled_hidden_states "
        "score_extraction_token model",
    ),
    Owner(
        _OPENAI + "EmbeddingRequest",
        BODY,
        ("/v1/embeddings",),
        {"input": "text input_ids", "embed_overrides": "positional_embed_overrides"},
        "model encoding_format user",
    ),
    Owner(
        _OPENAI + "ClassifyRequest",
        BODY,
        ("/v1/classify",),
        {"input": "text input_ids"},
        "model user",
    ),
    Owner(
        _OPENAI + "V1RerankReqInput",
        routes=("/v1/rerank",),
        renamed={"documents": "text", "query": "text"},
        unchecked="instruct top_n return_documents",
    ),
    Owner(
        _OPENAI + "TokenizeRequest",
        routes=("/tokenize", "/v1/tokenize"),
        renamed={"prompt": "text"},
        unchecked="model messages tools tool_choice reasoning_effort continue_final_message "
        "chat_template_kwargs add_special_tokens add_generation_prompt",
    ),
    Owner(
        _OPENAI + "DetokenizeRequest",
        routes=("/detokenize", "/v1/detokenize"),
        renamed={"tokens": "input_ids"},
        unchecked="model skip_special_tokens",
    ),
)


def names_of(rows: tuple[FieldRow, ...]) -> dict[str, FieldRow]:
    """Return the row of each field."""
    return {name: row for row in rows for name in row.names.split()}


def ordinary_names() -> frozenset[str]:
    """Return the names of all fields of SGLang's classes, as clients write them."""
    return frozenset().union(*map(_known_to, CLASSES))


def unknown_to(owner: Owner, fields: frozenset[str]) -> set[str]:
    """Return the fields of a class that the table does not know.

    Args:
        owner: The class.
        fields: Names of the fields that it has in some SGLang.
    """
    return {*fields} - _known_to(owner)


def _known_to(owner: Owner) -> set[str]:
    return {*names_of(owner.rows), *owner.renamed, *owner.unchecked.split()}


#: Name of a row -> a client's name for it, for each route.
CLIENT_NAMES: Mapping[str, Mapping[str, str]] = {
    route: {row: name for name, rows in reversed([*owner.renamed.items()]) for row in rows.split()}
    for owner in CLASSES
    for route in owner.routes
}
