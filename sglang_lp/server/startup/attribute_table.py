"""The table of attributes: every attribute of SGLang's objects that hooks use.

A missing attribute keeps the process from serving (see ``sglang_lp.server.startup.hooks``).
"""

from __future__ import annotations

from typing import NamedTuple

from sglang_lp.server.startup.sglang_names import (
    ARGS,
    BATCH,
    BEAMS,
    CHAINS,
    CONNECTION,
    COORDINATOR,
    DECODE,
    GRAMMARS,
    GROUP,
    MANAGER,
    OPENAI,
    PARAMS,
    REQUEST,
    SCHEDULER,
    SRT,
)
from sglang_lp.server.versions import BEAM_SEARCH, OLDEST

#: Attributes that verify steps of drafts read.
_DRAFTS = ("draft_token", "draft_token_num", "retrieve_next_sibling", "retrieve_next_token")

#: Attributes of NGRAM's worker that hooks use; checked when SGLang chooses the worker.
OF_NGRAM = ("_prepare_draft_tokens", "draft_token_num", "prev_accept_lens")

#: The class of requests in SGLang's HTTP module, whose bodies are checked; looked up once the app
#: exists, because an ``Engine`` has none.
OF_APP = "ORJSONRequest"


class Uses(NamedTuple):
    """Attributes that hooks use of the instances of one of SGLang's classes.

    Attributes:
        owner: The class, as ``module.Class``.
        names: Names of the attributes.
        since: The first SGLang whose class has these attributes.
        until: The last SGLang whose class has them; ``None``: the newest still has.
    """

    owner: str
    names: tuple[str, ...]
    since: str = OLDEST
    until: str | None = None


#: The attributes that hooks use of SGLang's objects.
ATTRIBUTES = (
    Uses(
        GRAMMARS + "reasoner_grammar_backend.ReasonerGrammarBackend",
        ("_init_value_dispatch", "cache", "executor", "grammar_backend"),
    ),
    Uses(
        GRAMMARS + "reasoner_grammar_backend.ReasonerGrammarObject",
        (
            *("_is_thinking", "_matched_think_end_tokens", "_thinking_match_history", "grammar"),
            *("maybe_init_reasoning", "think_end_ids"),
        ),
    ),
    Uses(
        GRAMMARS + "reasoner_grammar_backend.ReasonerGrammarObject",
        ("reasoning_in_grammar",),
        since="0.5.23",
    ),
    Uses(GRAMMARS + "xgrammar_backend.XGrammarGrammar", ("accepted_tokens", "copy", "ctx")),
    Uses(
        GRAMMARS + "xgrammar_backend.XGrammarGrammarBackend",
        ("override_stop_tokens",),
    ),
    Uses(
        GRAMMARS + "xgrammar_backend.XGrammarGrammarBackend",
        ("max_whitespace_cnt",),
        since="0.5.22",
    ),
    Uses(
        ARGS + "ServerArgs",
        (
            *("admin_api_key", "disable_radix_cache", "disaggregation_mode", "dllm_algorithm"),
            *("enable_custom_logit_processor", "enable_metrics", "enable_strict_thinking"),
            *("encoder_only", "grammar_backend", "grpc_mode", "model_path", "pp_size"),
            *("preferred_sampling_params", "reasoning_parser", "smg_grpc_mode"),
            *("speculative_accept_threshold_acc", "speculative_accept_threshold_single"),
            *("speculative_algorithm", "tokenizer_metrics_allowed_custom_labels"),
            *("tokenizer_path", "tokenizer_worker_num", "tool_call_parser", "tp_size"),
            *("trust_remote_code", "use_ray"),
        ),
    ),
    Uses(ARGS + "ServerArgs", ("trust_request_chat_template",), since="0.5.21"),
    Uses(
        OPENAI + "protocol.ChatCompletionRequest",
        (
            *("continue_final_message", "custom_logit_processor", "custom_params", "messages"),
            "min_tokens",
        ),
    ),
    Uses(OPENAI + "protocol.ResponsesRequest", ("metadata", "reasoning")),
    Uses(OPENAI + "serving_base.OpenAIServingBase", ("tokenizer_manager",)),
    Uses(OPENAI + "serving_chat.OpenAIServingChat", ("reasoning_parser", "tokenizer_manager")),
    Uses(
        SRT + "parser.reasoning_parser.BaseReasoningFormatDetector",
        (
            *("parse_streaming_increment", "think_end_token", "think_start_self_label"),
            *("think_start_token", "tool_start_token"),
        ),
    ),
    Uses(
        SRT + "parser.reasoning_parser.BaseReasoningFormatDetector",
        ("tool_start_at_line_start",),
        since="0.5.21",
    ),
    Uses(SRT + "parser.reasoning_parser.ReasoningParser", ("DetectorMap",)),
    Uses(SRT + "function_call.function_call_parser.FunctionCallParser", ("ToolCallParserEnum",)),
    Uses(SRT + "parser.reasoning_parser.StreamingParseResult", ("normal_text", "reasoning_text")),
    Uses(
        MANAGER[:-1],
        (
            *("_dispatch_to_scheduler", "abort_request", "generate_request", "max_req_input_len"),
            *("mm_processor", "model_config", "preferred_sampling_params", "rid_to_state"),
            *("server_args", "tokenizer"),
            *("_init_req_state", "_send_one_request", "_wait_one_response"),
        ),
    ),
    Uses(SRT + "managers.tokenizer_manager.ReqState", ("obj", "time_stats")),
    Uses(
        SRT + "managers.io_struct.GenerateReqInput",
        (
            *("batch_size", "bootstrap_host", "bootstrap_pair_key", "bootstrap_port"),
            "positional_embed_overrides",
            *(
                "bootstrap_room",
                "custom_logit_processor",
                "decode_tp_size",
                "disagg_prefill_dp_rank",
            ),
            *("input_ids", "is_single", "max_thinking_tokens", "normalize_batch_and_arguments"),
            *("contains_mm_input", "custom_labels", "input_embeds", "parallel_sample_num"),
            *("return_logprob", "return_sampling_mask", "rid", "routed_dp_rank"),
            *("sampling_params", "session_params", "text", "token_ids_logprob"),
            *("lora_id", "lora_path", "regenerate_rid", "return_text_in_logprobs", "stream"),
            "require_reasoning",
            "top_logprobs_num",
        ),
    ),
    Uses(
        SRT + "managers.io_struct.AbortReq",
        ("abort_all", "abort_message", "http_worker_ipc", "rid"),
    ),
    Uses(SRT + "disaggregation.encoder.receiver.MMReceiverBase", ("waiting_list",)),
    Uses(SRT + "disaggregation.encoder.receiver.WaitingMMRequestBase", ("rid",)),
    Uses(
        SRT + "managers.io_struct.BatchTokenIDOutput",
        ("http_worker_ipcs", "rids"),
    ),
    Uses(
        SRT + "managers.io_struct.BatchStrOutput",
        ("finished_reasons",),
    ),
    Uses(
        SRT + "managers.io_struct.TokenizedGenerateReqInput",
        (
            *("custom_logit_processor", "input_ids", "return_logprob", "return_sampling_mask"),
            *(
                "http_worker_ipc",
                "positional_embed_overrides",
                "rid",
                "sampling_params",
                "time_stats",
            ),
            *("input_embeds", "logprob_start_len", "mm_inputs", "require_reasoning"),
            *("return_hidden_states", "session_id", "session_params", "stream"),
            "token_ids_logprob",
            "top_logprobs_num",
        ),
    ),
    Uses(
        SRT + "configs.model_config.ModelConfig",
        (
            *("context_len", "dtype", "hf_eos_token_id", "hidden_size", "is_generation"),
            "vocab_size",
        ),
    ),
    Uses(
        PARAMS + "SamplingParams",
        (
            *("beam_width", "custom_params", "logit_bias", "max_new_tokens", "min_new_tokens"),
            *("frequency_penalty", "n", "presence_penalty", "repetition_penalty"),
            *("normalize", "sampling_seed", "stop_regex_strs", "stop_strs", "stop_token_ids"),
            *("temperature", "top_k"),
        ),
    ),
    Uses(
        SCHEDULER[:-1],
        (
            *("_add_request_to_queue", "chunked_req", "disagg_prefill_inflight_queue"),
            "disaggregation_mode",
            *("enable_overlap", "init_req_max_new_tokens", "max_req_input_len", "max_req_len"),
            *("max_running_requests", "mbs", "metrics_reporter", "mm_receiver", "model_config"),
            *("pp_group", "result_queue", "running_batch", "running_mbs", "rust_server"),
            *("server_args", "session_controller", "spec_algorithm", "tokenizer", "tp_worker"),
            "waiting_queue",
        ),
    ),
    Uses(SRT + "session.session_controller.SessionController", ("get",)),
    Uses(SRT + "session.session_controller.Session", ("req_nodes",)),
    Uses(SRT + "session.session_controller.SessionReqNode", ("req",)),
    Uses(SRT + "managers.io_struct.SessionParams", ("id", "rid")),
    Uses(SRT + "distributed.parallel_state.GroupCoordinator", ("is_last_rank",)),
    Uses(
        SRT + "managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter",
        ("current_scheduler_metrics_enabled",),
    ),
    Uses(
        REQUEST[:-1],
        (
            *("bootstrap_room", "custom_logit_processor", "disagg_kv_sender", "finished"),
            *("finished_len", "finished_reason", "grammar", "http_worker_ipc"),
            *("inflight_middle_chunks", "input_embeds", "is_retracted", "kv", "logprob"),
            "origin_input_ids",
            *(
                "output_ids",
                "pending_bootstrap",
                "positional_embed_overrides",
                "require_reasoning",
                "return_logprob",
            ),
            *("return_sampling_mask", "rid", "sampling_params", "set_finish_with_abort"),
            *("to_finish", "tokenizer", "update_finish_state", "vocab_size"),
        ),
    ),
    Uses(REQUEST[:-1], ("beam_group",), since=BEAM_SEARCH),
    Uses(BATCH + "ReqLogprob", ("token_ids_logprob", "top_logprobs_num")),
    Uses(BATCH + "ScheduleBatch", ("beam_tail",), since=BEAM_SEARCH),
    Uses(COORDINATOR[:-1], ("_num_live_groups",), since=BEAM_SEARCH),
    Uses(
        GROUP[:-1],
        (
            *("beam_width", "leader", "max_new_tokens"),
            *("num_candidates", "num_committed", "num_generated"),
            "num_return",
        ),
        since=BEAM_SEARCH,
    ),
    Uses(
        BEAMS + "joint_select.SelectResult",
        (
            *("fin_cum_logprobs", "new_cum_logprobs", "next_tokens", "num_finished"),
            *("num_survivors", "parent_idx"),
        ),
        since=BEAM_SEARCH,
    ),
    Uses(BEAMS + "beam_group.BeamResult", ("cum_logprob", "tokens"), since=BEAM_SEARCH),
    Uses(BEAMS + "batch_tail.BeamTail", ("entries", "num_base_rows"), since=BEAM_SEARCH),
    Uses(
        BEAMS + "batch_tail.BeamTailEntry",
        ("end", "group", "leader_idx", "start"),
        since=BEAM_SEARCH,
    ),
    Uses(SRT + "managers.io_struct.BeamSearchOutput", ("sequences",), since=BEAM_SEARCH),
    Uses(BEAMS + "types.BeamSearchSequence", ("finish_reason",), since=BEAM_SEARCH),
    Uses(BATCH + "ReqKvInfo", ("kv_committed_len",)),
    Uses(
        BATCH + "ScheduleBatch",
        (
            *("forward_mode", "has_grammar", "is_empty", "reqs", "sampling_info", "seq_lens"),
            *("spec_algorithm", "spec_info"),
        ),
    ),
    Uses(
        SRT + "model_executor.forward_batch_info.ForwardBatch",
        (*("forward_mode", "sampling_info", "spec_info"),),
    ),
    Uses(SRT + "model_executor.forward_batch_info.PPProxyTensors", ("tensors",)),
    Uses(
        SRT + "model_executor.forward_batch_info.ForwardMode",
        ("is_decode", "is_extend", "is_idle"),
    ),
    Uses(
        SRT + "sampling.sampling_batch_info.SamplingBatchInfo",
        (
            *("custom_params", "grammars", "has_custom_logit_processor", "is_all_greedy"),
            *("temperatures", "vocab_size"),
        ),
    ),
    Uses(
        SRT + "layers.logits_processor.LogitsProcessorOutput",
        (*("auxiliary_device_output", "next_token_logits", "next_token_logprobs"),),
    ),
    Uses(SRT + "managers.auxiliary_output.CommittedTokens", ("output_index", "token_ids")),
    Uses(
        SRT + "managers.utils.GenerationBatchResult",
        (
            *("accept_lens", "copy_done", "next_token_ids", "speculative_num_draft_tokens"),
            "speculative_output_stride",
        ),
    ),
    Uses(SRT + "managers.tp_worker.TpModelWorker", ("model_runner",)),
    Uses(SRT + "speculative.spec_info.SpeculativeAlgorithm", ("is_dflash", "is_ngram", "is_none")),
    Uses(SRT + "speculative.eagle_info.EagleVerifyInput", _DRAFTS),
    Uses(SRT + "speculative.ngram_info.NgramVerifyInput", _DRAFTS),
    Uses(SRT + "speculative.dflash_worker_v2.DFlashWorkerV2", ("_selector_sample",)),
    Uses(
        SRT + "speculative.dspark_components.dspark_draft.DraftProposal",
        (*("confidence", "draft_block"),),
    ),
    Uses(
        SRT + "speculative.dspark_components.dspark_draft.DraftProposal",
        ("verify_ids",),
        since="0.5.23",
    ),
    Uses(
        SRT + "speculative.dspark_components.dspark_draft.DraftBlockResult",
        (*("corrected_logits", "draft_tokens"),),
    ),
    Uses(
        SRT + "environ.Envs",
        (
            *("SGLANG_RETURN_ORIGINAL_LOGPROB", "SGLANG_RUST_SERVER", "SGLANG_SIMULATE_ACC_LEN"),
            "SGLANG_USE_PICKLE_IPC",
        ),
    ),
    Uses(SRT + "environ.Envs", ("SGLANG_HTTP_SERVER_APP_PATH",), since="0.5.23"),
    Uses(CHAINS + "DFlashVerifyInput", ("draft_token", "draft_token_num", "ragged_verify_layout")),
    Uses(SRT + "speculative.ragged_verify.RaggedVerifyLayout", ("verify_lens",)),
    Uses(CONNECTION + "BootstrapServer", ("app",)),
    Uses(
        CONNECTION + "Manager",
        (
            *("conclude_failure", "kv_status_msg_carries_reason", "prefill_info_table"),
            "record_failure",
        ),
    ),
    Uses(
        CONNECTION + "Receiver",
        (
            *("_send_abort_notification", "abort", "bootstrap_addr", "bootstrap_infos"),
            *("bootstrap_room", "kv_mgr"),
        ),
    ),
    Uses(CONNECTION + "Sender", ("kv_mgr",)),
    Uses(DECODE + "DecodeRequest", ("req",)),
)
