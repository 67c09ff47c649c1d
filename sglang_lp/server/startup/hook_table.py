"""The table of hooks: every SGLang function that the plugin hooks, every attribute it uses.

Only this module has the names of SGLang's functions. A missing function or attribute keeps the
process from serving (see ``sglang_lp.server.startup.hooks``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp.server.front import admission, fields, lists, meta_info, reports, span_attributes
from sglang_lp.server.front.fields import At, is_read
from sglang_lp.server.gate import reserved_keys
from sglang_lp.server.scheduler import (
    chains,
    disaggregated,
    gate,
    known_drafts,
    pipeline,
    raw_logprobs,
    release,
    sampling,
    speculation,
    waiting_queue,
)
from sglang_lp.server.scheduler.beams import results, steps
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.startup import launch, ngram_worker, workers
from sglang_lp.server.versions import BEAM_SEARCH, OLDEST

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard


class Shared:
    """The objects whose methods are hooks, one of each in a process.

    Args:
        guard: Of this process.
    """

    def __init__(self, guard: Guard) -> None:
        pending, arrivals = PendingResults(), Arrivals()
        self.launch = launch.Launch(guard, pending)
        # In the HTTP process.
        self.reader = fields.Reader(guard)
        self.admission = admission.Admission(guard)
        self.lists = lists.Lists(self.admission)
        # In the scheduler.
        self.gate = gate.SchedulerGate(guard, pending, arrivals)
        self.waiting_queue = waiting_queue.WaitingQueue(guard, arrivals)
        self.steps = sampling.Steps(pending)
        self.trees = speculation.TreeSteps(self.steps)
        self.chains = chains.ChainSteps(self.steps)
        self.beams = steps.BeamSteps()
        self.raw = raw_logprobs.RawSteps(self.steps)
        self.stages = pipeline.Stages(pending)
        self.peers = disaggregated.Peers(guard)


def _always(_guard: Guard) -> bool:
    return True


def _reads_effort(guard: Guard) -> bool:
    return guard.rules.reads_effort


class Hook(NamedTuple):
    """A function of SGLang, and our function that hooks it.

    Ours declares the parameters that it reads in its signature, as SGLang names and places them;
    ``sglang_lp.server.startup.signatures`` compares the two at start-up.

    Attributes:
        target: SGLang's function, as ``module.function`` or ``module.Class.function``.
        kind: On which side ours runs: ``"before"``, ``"after"``, ``"around"`` or ``"replace"``.
        make: Return ours.
        since: The first SGLang that has the function in this form.
        until: The last SGLang that has the function in this form; ``None``: the newest still has.
        serves: Tell from the guard whether this server needs the hook.
    """

    target: str
    kind: str
    make: Callable[[Shared], Any]
    since: str = OLDEST
    until: str | None = None
    serves: Callable[[Guard], bool] = _always


class Uses(NamedTuple):
    """Attributes that hooks use of the instances of one of SGLang's classes.

    Attributes:
        owner: The class, as ``module.Class``.
        names: Of the attributes.
        since: As for :class:`Hook`.
        until: As for :class:`Hook`.
    """

    owner: str
    names: tuple[str, ...]
    since: str = OLDEST
    until: str | None = None


_SRT = "sglang.srt."
_ENGINE = _SRT + "entrypoints.engine."
_OPENAI = _SRT + "entrypoints.openai."
_STOCK = _SRT + "sampling.custom_logit_processor."
_PARAMS = _SRT + "sampling.sampling_params."
_ARGS = _SRT + "server_args."
_MANAGER = _SRT + "managers.tokenizer_manager.TokenizerManager."
_SCHEDULER = _SRT + "managers.scheduler.Scheduler."
_BATCH = _SRT + "managers.schedule_batch."
_REQUEST = _BATCH + "Req."
_DECODE = _SRT + "disaggregation.decode."
_BEAMS = _SRT + "beam_search."
_COORDINATOR = _BEAMS + "coordinator.BeamCoordinator."
_GROUP = _BEAMS + "beam_group.BeamGroup."
_CHAINS = _SRT + "speculative.dflash_info."
_CONNECTION = _SRT + "disaggregation.common.conn.CommonKV"
_CHAT = _OPENAI + "serving_chat.OpenAIServingChat._convert_to_internal_request"
_COMPLETION = _OPENAI + "serving_completions.OpenAIServingCompletion._convert_to_internal_request"
_RESPONSES = _OPENAI + "protocol.ResponsesRequest.to_sampling_params"
_CREATE_RESPONSES = _OPENAI + "serving_responses.OpenAIServingResponses.create_responses"
_HANDLE = _OPENAI + "serving_base.OpenAIServingBase.handle_request"
_ANTHROPIC = _SRT + "entrypoints.anthropic.serving.AnthropicServing."

#: Attributes that verify steps of drafts read.
_DRAFTS = ("draft_token", "draft_token_num", "retrieve_next_sibling", "retrieve_next_token")

#: Attributes of NGRAM's worker that hooks use; checked when SGLang chooses the worker.
OF_NGRAM = ("_prepare_draft_tokens", "draft_token_num", "prev_accept_lens")

_BeamHook = partial(Hook, since=BEAM_SEARCH)

HOOKS: tuple[Hook, ...] = (
    # Start-up: no process without the guard.
    Hook(_ARGS + "prepare_server_args", "after", lambda _: launch.check_parsed),
    Hook(_ARGS + "ServerArgs.check_server_args", "before", lambda _: launch.check_launch),
    Hook(_ENGINE + "Engine._launch_subprocesses", "before", lambda _: launch.check_engine),
    Hook(
        _ENGINE + "Engine._launch_scheduler_processes",
        "around",
        lambda shared: shared.launch.start_schedulers,
    ),
    Hook(
        _ENGINE + "write_data_for_multi_tokenizer",
        "before",
        lambda _: workers.refuse_to_be_joined,
        since="0.5.21",  # before, an Engine could not be joined
    ),
    Hook(
        _MANAGER + "init_tokenizer_and_processor",
        "after",
        lambda shared: shared.launch.learn_front,
    ),
    Hook(_MANAGER + "__init__", "after", lambda shared: shared.launch.begin_front),
    Hook(
        _SCHEDULER + "get_init_info",
        "after",
        lambda shared: shared.launch.learn_scheduler,
    ),
    # Nothing is unpickled.
    Hook(_STOCK + "_cache_from_str", "replace", lambda _: gate.refuse_to_load),
    Hook(
        _STOCK + "CustomLogitProcessor.from_str",
        "replace",
        lambda shared: shared.gate.from_str,
    ),
    Hook(
        _STOCK + "supports_sampling_mask",
        "replace",
        lambda _: admission.supports_sampling_mask,
    ),
    # The HTTP process: what a request asks for, and admission.
    Hook(_CHAT, "before", lambda shared: shared.reader.read_chat),
    Hook(_COMPLETION, "before", lambda shared: shared.reader.read_completion),
    Hook(
        _CREATE_RESPONSES,
        "before",
        lambda shared: shared.reader.keep_response,
    ),
    Hook(_RESPONSES, "after", lambda shared: shared.reader.read_response_form),
    Hook(
        _OPENAI + "protocol.ChatCompletionRequest.to_sampling_params",
        "after",
        lambda shared: shared.reader.read_chat_form,
        serves=partial(is_read, At.CHAT_FORM),
    ),
    Hook(
        _ANTHROPIC + "_convert_to_chat_completion_request",
        "after",
        lambda shared: shared.reader.read_message,
        serves=partial(is_read, At.MESSAGE_FORM),
    ),
    Hook(
        _MANAGER + "generate_request",
        "before",
        lambda _: fields.take_max_thinking_tokens,
        serves=_reads_effort,
    ),
    Hook(
        _PARAMS + "set_request_reasoning_end_token_ids", "around", lambda _: reserved_keys.remember
    ),
    Hook(
        _PARAMS + "set_request_reasoning_in_grammar",
        "around",
        lambda _: reserved_keys.remember,
        since="0.5.23",
    ),
    Hook(
        _MANAGER + "create_abort_task",
        "before",
        lambda shared: shared.admission.admit_stream,
    ),
    Hook(
        _MANAGER + "_handle_batch_request",
        "around",
        lambda shared: shared.lists.admit,
    ),
    Hook(_MANAGER + "abort_request", "around", lambda shared: shared.lists.abort),
    Hook(
        _MANAGER + "_create_tokenized_object",
        "after",
        lambda shared: shared.admission.admit,
    ),
    Hook(_HANDLE, "before", lambda _: reports.ask),
    Hook(_CREATE_RESPONSES, "before", lambda _: reports.ask),
    Hook(_MANAGER + "generate_request", "around", lambda _: reports.collect),
    Hook(_MANAGER + "_handle_abort_finish_reason", "before", lambda _: meta_info.take_report),
    Hook(
        _MANAGER + "convert_to_span_attrs",
        "after",
        lambda _: span_attributes.add_report,
        since="0.5.23",  # older versions trace without it
    ),
    # The scheduler: a request's way from its gate to its end.
    Hook(
        _REQUEST + "__init__",
        "after",
        lambda shared: shared.gate.admit_req,
    ),
    Hook(
        _SCHEDULER + "get_new_batch_prefill",
        "around",
        lambda shared: shared.waiting_queue.hold,
    ),
    Hook(
        _SRT + "constrained.grammar_manager.GrammarManager.get_ready_grammar_requests",
        "around",
        lambda shared: shared.waiting_queue.hold_compiled,
    ),
    Hook(
        _SRT + "layers.sampler.apply_custom_logit_processor",
        "replace",
        lambda shared: shared.steps.run,
    ),
    Hook(
        _SRT + "managers.tp_worker.TpModelWorker.forward_batch_generation",
        "before",
        lambda shared: shared.trees.capture,
    ),
    Hook(
        _SRT + "speculative.eagle_utils.eagle_sample",
        "before",
        lambda shared: shared.trees.verify,
    ),
    Hook(
        _CHAINS + "DFlashVerifyInput.prepare_for_verify",
        "before",
        lambda shared: shared.chains.begin,
    ),
    Hook(
        _SRT + "speculative.dflash_worker_v2.DFlashWorkerV2._accept_block",
        "before",
        lambda shared: shared.chains.accept_block,
    ),
    Hook(
        _SRT
        + "speculative.dspark_components.dspark_verify.TargetVerifyExecutor.accept_and_finalize",
        "before",
        lambda shared: shared.chains.accept_and_finalize,
    ),
    Hook(_SCHEDULER + "run_batch", "after", lambda shared: shared.steps.end_unseen),
    # Pipeline ranks.
    Hook(_SCHEDULER + "_pp_prepare_tensor_dict", "after", lambda shared: shared.stages.send),
    Hook(_SCHEDULER + "_pp_prep_batch_result", "before", lambda shared: shared.stages.apply),
    # The model's own logprobs.
    Hook(
        _SRT + "model_executor.model_runner.ModelRunner.sample",
        "after",
        lambda shared: shared.raw.after_sample,
    ),
    Hook(
        _SRT + "layers.logprob_processor.compute_spec_logprobs",
        "after",
        lambda shared: shared.raw.after_verify,
    ),
    # Drafts that know what will be forced.
    Hook(
        _SRT + "speculative.dspark_components.dspark_draft.DraftBlockProposer.propose",
        "after",
        lambda _: known_drafts.foresee_block,
    ),
    Hook(
        _SRT + "speculative.eagle_worker_common.build_eagle_verify_input",
        "before",
        lambda _: known_drafts.foresee_chain,
    ),
    Hook(
        # The worker's module is imported where it is needed: a CPU lacks kernels that it has.
        _SRT + "speculative.spec_info.SpeculativeAlgorithm.create_worker",
        "after",
        lambda _: ngram_worker.make_choose_worker(OF_NGRAM),
    ),
    Hook(_REQUEST + "update_finish_state", "around", lambda _: release.finish),
    Hook(_REQUEST + "reset_for_retract", "after", lambda _: sampling.rewind),
    Hook(_SCHEDULER + "_release_aborted_request", "after", lambda _: release.abandon),
    # Beams.
    _BeamHook(_COORDINATOR + "validate_and_init", "around", lambda _: steps.attach),
    _BeamHook(
        _BEAMS + "logits_capture.capture_pre_sample_logits",
        "before",
        lambda shared: shared.beams.edit,
    ),
    _BeamHook(_BEAMS + "coordinator._rows_topk_logprobs", "around", lambda _: steps.defer),
    _BeamHook(_COORDINATOR + "_select_group", "before", lambda _: steps.score),
    _BeamHook(_GROUP + "advance_frontier", "before", lambda _: steps.grow),
    _BeamHook(_COORDINATOR + "commit_prefill", "before", lambda _: steps.end_failed_prefill),
    _BeamHook(_COORDINATOR + "commit_decode", "before", lambda _: steps.end_failed),
    _BeamHook(_COORDINATOR + "_retire_group", "after", lambda _: results.finish),
    _BeamHook(_BEAMS + "output.pack_beam_search_output", "after", lambda _: results.tell),
    # Prefill and decode apart.
    Hook(_SCHEDULER + "_retire_aborted_prefill_result", "around", lambda _: disaggregated.retire),
    Hook(
        _SCHEDULER + "handle_pending_bootstrap",
        "around",
        lambda _: disaggregated.tell_when_bootstrapped,
    ),
    Hook(
        _CONNECTION + "BootstrapServer._setup_routes",
        "after",
        lambda shared: shared.peers.answer,
    ),
    Hook(
        _CONNECTION + "Manager.try_ensure_parallel_info",
        "around",
        lambda shared: shared.peers.ask,
    ),
    Hook(_CONNECTION + "Receiver.init", "after", lambda _: disaggregated.turn_away),
    Hook(_DECODE + "prepare_abort", "around", lambda _: disaggregated.say_why),
    Hook(
        _DECODE + "DecodeTransferQueue._commit_transfer_to_req",
        "after",
        lambda _: disaggregated.note_first,
    ),
    Hook(
        _SCHEDULER + "get_new_prebuilt_batch",
        "around",
        lambda shared: shared.waiting_queue.hold_prebuilt,
    ),
)

#: The attributes that hooks use of SGLang's objects.
ATTRIBUTES = (
    Uses(
        _ARGS + "ServerArgs",
        (
            *("disaggregation_mode", "enable_custom_logit_processor", "encoder_only", "grpc_mode"),
            *("model_path", "pp_size", "smg_grpc_mode", "speculative_algorithm", "tokenizer_path"),
            *("tokenizer_worker_num", "tp_size", "use_ray"),
        ),
    ),
    Uses(_OPENAI + "protocol.ChatCompletionRequest", ("continue_final_message", "messages")),
    Uses(_OPENAI + "protocol.ResponsesRequest", ("metadata", "reasoning")),
    Uses(_OPENAI + "serving_base.OpenAIServingBase", ("tokenizer_manager",)),
    Uses(_OPENAI + "serving_chat.OpenAIServingChat", ("reasoning_parser",)),
    Uses(
        _SRT + "parser.reasoning_parser.BaseReasoningFormatDetector",
        (*("parse_streaming_increment", "think_end_token", "think_start_token"),),
    ),
    Uses(_SRT + "parser.reasoning_parser.StreamingParseResult", ("normal_text", "reasoning_text")),
    Uses(
        _MANAGER[:-1],
        (
            *("abort_request", "generate_request", "model_config", "preferred_sampling_params"),
            *("server_args", "tokenizer"),
        ),
    ),
    Uses(_SRT + "managers.tokenizer_manager.ReqState", ("obj",)),
    Uses(
        _SRT + "managers.io_struct.GenerateReqInput",
        (
            *("batch_size", "bootstrap_host", "bootstrap_pair_key", "bootstrap_port"),
            *(
                "bootstrap_room",
                "custom_logit_processor",
                "decode_tp_size",
                "disagg_prefill_dp_rank",
            ),
            *("input_ids", "is_single", "max_thinking_tokens", "normalize_batch_and_arguments"),
            *("parallel_sample_num", "return_logprob", "return_sampling_mask", "routed_dp_rank"),
            *("sampling_params", "text"),
        ),
    ),
    Uses(
        _SRT + "managers.io_struct.BatchStrOutput",
        ("finished_reasons",),
    ),
    Uses(
        _SRT + "managers.io_struct.TokenizedGenerateReqInput",
        (
            *("custom_logit_processor", "input_ids", "return_logprob", "return_sampling_mask"),
            "sampling_params",
        ),
    ),
    Uses(
        _SRT + "configs.model_config.ModelConfig",
        (*("context_len", "hf_eos_token_id", "is_generation", "vocab_size"),),
    ),
    Uses(
        _PARAMS + "SamplingParams",
        (
            *("beam_width", "custom_params", "logit_bias", "max_new_tokens", "min_new_tokens"),
            *("temperature", "top_k"),
        ),
    ),
    Uses(
        _SCHEDULER[:-1],
        (
            *("_add_request_to_queue", "disagg_prefill_inflight_queue", "disaggregation_mode"),
            *("enable_overlap", "max_req_len", "max_running_requests", "mbs", "metrics_reporter"),
            *("model_config", "pp_group", "result_queue", "running_batch", "running_mbs"),
            *("server_args", "spec_algorithm", "tokenizer", "tp_worker", "waiting_queue"),
        ),
    ),
    Uses(_SRT + "distributed.parallel_state.GroupCoordinator", ("is_last_rank",)),
    Uses(
        _SRT + "managers.scheduler_components.metrics_reporter.SchedulerMetricsReporter",
        ("current_scheduler_metrics_enabled",),
    ),
    Uses(
        _REQUEST[:-1],
        (
            *("bootstrap_room", "custom_logit_processor", "disagg_kv_sender"),
            *("finished", "finished_len", "finished_reason", "grammar", "inflight_middle_chunks"),
            *("is_retracted", "kv", "origin_input_ids", "output_ids", "pending_bootstrap"),
            *("return_logprob", "return_sampling_mask", "sampling_params", "set_finish_with_abort"),
            *("to_finish", "tokenizer", "vocab_size"),
        ),
    ),
    Uses(_REQUEST[:-1], ("beam_group",), since=BEAM_SEARCH),
    Uses(_BATCH + "ScheduleBatch", ("beam_tail",), since=BEAM_SEARCH),
    Uses(_COORDINATOR[:-1], ("_num_live_groups",), since=BEAM_SEARCH),
    Uses(
        _GROUP[:-1],
        (
            *("beam_width", "leader", "max_new_tokens"),
            *("num_candidates", "num_committed", "num_generated"),
            "num_return",
        ),
        since=BEAM_SEARCH,
    ),
    Uses(
        _BEAMS + "joint_select.SelectResult",
        (
            *("fin_cum_logprobs", "new_cum_logprobs", "next_tokens", "num_finished"),
            *("num_survivors", "parent_idx"),
        ),
        since=BEAM_SEARCH,
    ),
    Uses(_BEAMS + "beam_group.BeamResult", ("cum_logprob", "tokens"), since=BEAM_SEARCH),
    Uses(_BEAMS + "batch_tail.BeamTail", ("entries", "num_base_rows"), since=BEAM_SEARCH),
    Uses(
        _BEAMS + "batch_tail.BeamTailEntry",
        ("end", "group", "leader_idx", "start"),
        since=BEAM_SEARCH,
    ),
    Uses(_SRT + "managers.io_struct.BeamSearchOutput", ("sequences",), since=BEAM_SEARCH),
    Uses(_BEAMS + "types.BeamSearchSequence", ("finish_reason",), since=BEAM_SEARCH),
    Uses(_BATCH + "ReqKvInfo", ("kv_committed_len",)),
    Uses(_BATCH + "FINISH_ABORT", ("message", "status_code")),
    Uses(
        _BATCH + "ScheduleBatch",
        (
            *("forward_mode", "has_grammar", "is_empty", "reqs", "sampling_info", "seq_lens"),
            *("spec_algorithm", "spec_info"),
        ),
    ),
    Uses(
        _SRT + "model_executor.forward_batch_info.ForwardBatch",
        (*("forward_mode", "sampling_info", "spec_info"),),
    ),
    Uses(_SRT + "model_executor.forward_batch_info.PPProxyTensors", ("tensors",)),
    Uses(
        _SRT + "model_executor.forward_batch_info.ForwardMode",
        ("is_decode", "is_extend", "is_idle"),
    ),
    Uses(
        _SRT + "sampling.sampling_batch_info.SamplingBatchInfo",
        (
            *("custom_params", "grammars", "has_custom_logit_processor", "is_all_greedy"),
            *("temperatures", "vocab_size"),
        ),
    ),
    Uses(
        _SRT + "layers.logits_processor.LogitsProcessorOutput",
        (*("auxiliary_device_output", "next_token_logits", "next_token_logprobs"),),
    ),
    Uses(_SRT + "managers.auxiliary_output.CommittedTokens", ("output_index", "token_ids")),
    Uses(
        _SRT + "managers.utils.GenerationBatchResult",
        (
            *("accept_lens", "copy_done", "next_token_ids", "speculative_num_draft_tokens"),
            "speculative_output_stride",
        ),
    ),
    Uses(_SRT + "managers.tp_worker.TpModelWorker", ("model_runner",)),
    Uses(_SRT + "speculative.spec_info.SpeculativeAlgorithm", ("is_dflash", "is_ngram", "is_none")),
    Uses(_SRT + "speculative.eagle_info.EagleVerifyInput", _DRAFTS),
    Uses(_SRT + "speculative.ngram_info.NgramVerifyInput", _DRAFTS),
    Uses(_SRT + "speculative.dflash_worker_v2.DFlashWorkerV2", ("_selector_sample",)),
    Uses(
        _SRT + "speculative.dspark_components.dspark_draft.DraftProposal",
        (*("confidence", "draft_block"),),
    ),
    Uses(
        _SRT + "speculative.dspark_components.dspark_draft.DraftBlockResult",
        (*("corrected_logits", "draft_tokens"),),
    ),
    Uses(_SRT + "environ.Envs", ("SGLANG_SIMULATE_ACC_LEN",)),
    Uses(_CHAINS + "DFlashVerifyInput", ("draft_token", "draft_token_num", "ragged_verify_layout")),
    Uses(_SRT + "speculative.ragged_verify.RaggedVerifyLayout", ("verify_lens",)),
    Uses(_CONNECTION + "BootstrapServer", ("app",)),
    Uses(_CONNECTION + "Manager", ("conclude_failure", "prefill_info_table", "record_failure")),
    Uses(
        _CONNECTION + "Receiver",
        (
            *("_send_abort_notification", "abort", "bootstrap_addr", "bootstrap_infos"),
            *("bootstrap_room", "kv_mgr"),
        ),
    ),
    Uses(_CONNECTION + "Sender", ("kv_mgr",)),
    Uses(_DECODE + "DecodeRequest", ("req",)),
)
