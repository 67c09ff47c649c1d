"""The table of hooks: every SGLang function that the plugin hooks.

Names of hooked functions are only here and, as prefixes, in
``sglang_lp.server.startup.sglang_names``. A missing function keeps the process from serving (see
``sglang_lp.server.startup.hooks``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp.server.front import (
    admission,
    answer_errors,
    bodies,
    decoded_apart,
    families,
    fields,
    lists,
    meta_info,
    ollama,
    reports,
    request_labels,
    scoring,
    span_attributes,
    whole_requests,
)
from sglang_lp.server.front.fields import At, always, is_read, reads_effort
from sglang_lp.server.gate import reserved_keys
from sglang_lp.server.scheduler import (
    aborts,
    chains,
    closing,
    disaggregated,
    gate,
    grammar_time,
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
from sglang_lp.server.startup.attribute_table import OF_NGRAM
from sglang_lp.server.startup.sglang_names import (
    ANTHROPIC,
    ARGS,
    BEAMS,
    CHAINS,
    CONNECTION,
    COORDINATOR,
    DECODE,
    ENGINE,
    GRAMMARS,
    GROUP,
    MANAGER,
    OLLAMA,
    OPENAI,
    PARAMS,
    REQUEST,
    SCHEDULER,
    SRT,
    STOCK,
)
from sglang_lp.server.versions import BEAM_SEARCH, OLDEST

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard


class Shared:
    """The objects whose methods are hooks, one of each in a process.

    Every process makes all of them; each uses those of its hooks.

    Args:
        guard: The guard of this process.
    """

    def __init__(self, guard: Guard) -> None:
        pending, arrivals = PendingResults(), Arrivals()
        self.launch = launch.Launch(guard, pending)
        # In the HTTP process.
        self.bodies = bodies.Bodies(guard)
        self.reader = fields.Reader(guard)
        self.ollama = ollama.Ollama(self.reader)
        self.whole = whole_requests.WholeRequests(guard)
        self.admission = admission.Admission(guard)
        self.families = families.Families(guard)
        self.lists = lists.Lists(self.admission, self.families)
        # In the scheduler.
        self.aborts = aborts.Aborts()
        self.gate = gate.SchedulerGate(guard, pending, arrivals)
        self.waiting_queue = waiting_queue.WaitingQueue(guard, arrivals)
        self.steps = sampling.Steps(pending)
        self.trees = speculation.TreeSteps(self.steps)
        self.chains = chains.ChainSteps(self.steps)
        self.beams = steps.BeamSteps()
        self.raw = raw_logprobs.RawSteps(self.steps)
        self.stages = pipeline.Stages(pending)
        self.peers = disaggregated.Peers(guard)
        self.closings = closing.Closings(guard, arrivals)
        self.grammar_time = grammar_time.GrammarTime(guard)


class Hook(NamedTuple):
    """A function of SGLang, and our function that hooks it.

    Ours declares the parameters that it reads in its signature, as SGLang names and places them;
    ``sglang_lp.server.startup.signatures`` compares the two at start-up.

    Attributes:
        target: SGLang's function, as ``module.function`` or ``module.Class.function``.
        kind: When ours runs: ``"before"``, ``"after"``, ``"around"`` or ``"replace"``.
        make: Return our function.
        since: The first SGLang that has the function in this form.
        until: The last SGLang that has the function in this form; ``None``: the newest still has.
        serves: Tell from the guard whether this server needs the hook.
    """

    target: str
    kind: str
    make: Callable[[Shared], Any]
    since: str = OLDEST
    until: str | None = None
    serves: Callable[[Guard], bool] = always


_CHAT = OPENAI + "serving_chat.OpenAIServingChat._convert_to_internal_request"
_COMPLETION = OPENAI + "serving_completions.OpenAIServingCompletion._convert_to_internal_request"
_RESPONSES = OPENAI + "protocol.ResponsesRequest.to_sampling_params"
_CREATE_RESPONSES = OPENAI + "serving_responses.OpenAIServingResponses.create_responses"
_HANDLE = OPENAI + "serving_base.OpenAIServingBase.handle_request"

_TOKENIZE, _ANSWER = OPENAI + "serving_tokenize.OpenAIServing", "._handle_non_streaming_request"

_BeamHook = partial(Hook, since=BEAM_SEARCH)

HOOKS: tuple[Hook, ...] = (
    # Start-up: no process without the guard.
    Hook(ARGS + "prepare_server_args", "after", lambda _: launch.check_parsed),
    Hook(ARGS + "ServerArgs.check_server_args", "before", lambda _: launch.check_launch),
    Hook(ENGINE + "Engine._launch_subprocesses", "before", lambda _: launch.check_engine),
    Hook(
        ENGINE + "Engine._launch_scheduler_processes",
        "around",
        lambda shared: shared.launch.start_schedulers,
    ),
    Hook(
        ENGINE + "write_data_for_multi_tokenizer",
        "before",
        lambda _: workers.refuse_to_be_joined,
        since="0.5.21",  # before, an Engine could not be joined
    ),
    Hook(
        MANAGER + "init_tokenizer_and_processor",
        "after",
        lambda shared: shared.launch.learn_front,
    ),
    Hook(MANAGER + "__init__", "after", lambda shared: shared.launch.begin_front),
    Hook(
        SCHEDULER + "get_init_info",
        "after",
        lambda shared: shared.launch.learn_scheduler,
    ),
    Hook(SCHEDULER + "get_init_info", "after", lambda shared: shared.steps.load_forms),
    # Nothing is unpickled.
    Hook(STOCK + "_cache_from_str", "replace", lambda _: gate.refuse_to_load),
    Hook(
        STOCK + "CustomLogitProcessor.from_str",
        "replace",
        lambda shared: shared.gate.from_str,
    ),
    Hook(
        STOCK + "supports_sampling_mask",
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
        OPENAI + "protocol.ChatCompletionRequest.to_sampling_params",
        "after",
        lambda shared: shared.reader.read_chat_form,
        serves=partial(is_read, At.CHAT_FORM),
    ),
    Hook(
        ANTHROPIC + "_convert_to_chat_completion_request",
        "after",
        lambda shared: shared.reader.read_message,
        serves=partial(is_read, At.MESSAGE_FORM),
    ),
    Hook(OLLAMA + "handle_chat", "around", lambda shared: shared.ollama.answer),
    Hook(OLLAMA + "handle_generate", "around", lambda shared: shared.ollama.answer),
    Hook(
        OLLAMA + "_convert_options_to_sampling_params",
        "after",
        lambda shared: shared.reader.read_options,
    ),
    # Only events of a realtime session need a hook to be checked: the bodies of HTTP requests are
    # checked where SGLang's app parses them (``bodies``).
    Hook(
        OPENAI + "realtime.session._parse_client_event",
        "before",
        lambda shared: shared.bodies.check_event,
    ),
    Hook(
        MANAGER + "generate_request",
        "before",
        lambda _: fields.take_max_thinking_tokens,
        serves=reads_effort,
    ),
    Hook(MANAGER + "generate_request", "before", lambda shared: shared.whole.check),
    Hook(_TOKENIZE + "Tokenize" + _ANSWER, "before", lambda shared: shared.whole.check_tokenize),
    Hook(
        _TOKENIZE + "Detokenize" + _ANSWER, "before", lambda shared: shared.whole.check_detokenize
    ),
    Hook(
        PARAMS + "set_request_reasoning_end_token_ids", "around", lambda _: reserved_keys.remember
    ),
    Hook(
        PARAMS + "set_request_reasoning_in_grammar",
        "around",
        lambda _: reserved_keys.remember,
        since="0.5.23",
    ),
    Hook(MANAGER + "generate_request", "before", lambda shared: shared.families.begin),
    Hook(MANAGER + "_init_req_state", "after", lambda shared: shared.families.join),
    # SGLang calls it before it sends the status of a stream, so a stream can still be refused with
    # HTTP 400. Of several hooks the last in this table runs first: ``check_stream``, then
    # ``admit_stream``.
    Hook(MANAGER + "create_abort_task", "replace", lambda shared: shared.families.abort_later),
    Hook(
        MANAGER + "create_abort_task",
        "before",
        lambda shared: shared.admission.admit_stream,
    ),
    Hook(MANAGER + "create_abort_task", "before", lambda shared: shared.whole.check_stream),
    Hook(
        MANAGER + "_handle_batch_request",
        "around",
        lambda shared: shared.lists.admit,
    ),
    Hook(MANAGER + "abort_request", "around", lambda shared: shared.lists.abort),
    Hook(
        MANAGER + "_create_tokenized_object",
        "after",
        lambda shared: shared.admission.admit,
    ),
    Hook(MANAGER + "_tokenize_one_request", "around", lambda _: scoring.score),
    Hook(_HANDLE, "before", lambda _: reports.ask),
    Hook(_CREATE_RESPONSES, "before", lambda _: reports.ask),
    Hook(MANAGER + "generate_request", "around", lambda _: reports.collect),
    Hook(MANAGER + "generate_request", "around", lambda _: answer_errors.follow),
    Hook(MANAGER + "_handle_abort_finish_reason", "around", lambda _: answer_errors.keep_code),
    Hook(MANAGER + "_handle_abort_finish_reason", "before", lambda _: meta_info.take_report),
    Hook(
        MANAGER + "convert_to_span_attrs",
        "after",
        lambda _: span_attributes.add_report,
        since="0.5.23",  # older versions trace without it
    ),
    Hook(
        SRT + "managers.detokenizer_manager.DetokenizerManager._decode_batch_token_id_output",
        "around",
        lambda _: decoded_apart.decode_apart,
        since="0.5.23",  # a guarded server has one tokenizer worker in older versions
    ),
    Hook(
        SRT + "utils.common._get_fastapi_request_path",
        "after",
        lambda _: request_labels.bound,
        until="0.5.22",
    ),
    Hook(
        SRT + "observability.http_request_metrics._get_fastapi_request_path",
        "after",
        lambda _: request_labels.bound,
        since="0.5.23",
    ),
    # The scheduler: a request's way from its gate to its end.
    Hook(REQUEST + "__init__", "after", lambda shared: shared.aborts.know),
    Hook(SCHEDULER + "abort_request", "around", lambda shared: shared.aborts.abort),
    Hook(SCHEDULER + "handle_generate_request", "around", lambda shared: shared.gate.receive),
    Hook(SCHEDULER + "handle_embedding_request", "around", lambda shared: shared.gate.receive),
    Hook(
        REQUEST + "__init__",
        "after",
        lambda shared: shared.gate.admit_req,
    ),
    Hook(
        SCHEDULER + "get_new_batch_prefill",
        "around",
        lambda shared: shared.waiting_queue.hold,
    ),
    Hook(
        SRT + "constrained.grammar_manager.GrammarManager.get_ready_grammar_requests",
        "around",
        lambda shared: shared.waiting_queue.hold_compiled,
    ),
    # Structured answers that are complete at their limit.
    Hook(
        GRAMMARS + "xgrammar_backend.XGrammarGrammarBackend.__init__",
        "after",
        lambda shared: shared.closings.prepare,
        since="0.5.22",
    ),
    Hook(
        GRAMMARS + "grammar_manager.GrammarManager.process_req_with_grammar",
        "around",
        lambda shared: shared.closings.process,
    ),
    Hook(
        GRAMMARS + "base_grammar_backend.BaseGrammarBackend.get_cached_or_future_value",
        "around",
        lambda shared: shared.closings.look_up,
    ),
    Hook(
        GRAMMARS + "grammar_manager.GrammarManager._apply_request_reasoning_config",
        "after",
        lambda shared: shared.closings.arm,
    ),
    Hook(
        GRAMMARS + "xgrammar_backend.XGrammarGrammar.fill_vocab_mask",
        "after",
        lambda _: closing.narrow,
    ),
    Hook(
        GRAMMARS + "reasoner_grammar_backend.ReasonerGrammarObject.fill_vocab_mask",
        "after",
        lambda _: closing.close_thinking,
    ),
    Hook(GRAMMARS + "xgrammar_backend.XGrammarGrammar.rollback", "after", lambda _: closing.rewind),
    Hook(
        GRAMMARS + "reasoner_grammar_backend.ReasonerGrammarObject.rollback",
        "after",
        lambda _: closing.rewind,
    ),
    # Grammars that take too long.
    Hook(
        GRAMMARS + "xgrammar_backend.XGrammarGrammar.fill_vocab_mask",
        "around",
        lambda _: grammar_time.fill,
    ),
    Hook(
        GRAMMARS + "xgrammar_backend.XGrammarGrammar.accept_token",
        "around",
        lambda _: grammar_time.accept,
    ),
    Hook(REQUEST + "update_finish_state", "after", lambda shared: shared.grammar_time.end),
    # A step: ordinary, and verify steps.
    Hook(
        SRT + "layers.sampler.apply_custom_logit_processor",
        "replace",
        lambda shared: shared.steps.run,
    ),
    Hook(
        SRT + "managers.tp_worker.TpModelWorker.forward_batch_generation",
        "before",
        lambda shared: shared.trees.capture,
    ),
    Hook(
        SRT + "speculative.eagle_utils.eagle_sample",
        "before",
        lambda shared: shared.trees.verify,
    ),
    Hook(
        CHAINS + "DFlashVerifyInput.prepare_for_verify",
        "before",
        lambda shared: shared.chains.begin,
    ),
    Hook(
        SRT + "speculative.dflash_worker_v2.DFlashWorkerV2._accept_block",
        "before",
        lambda shared: shared.chains.accept_block,
    ),
    Hook(
        SRT
        + "speculative.dspark_components.dspark_verify.TargetVerifyExecutor.accept_and_finalize",
        "before",
        lambda shared: shared.chains.accept_and_finalize,
    ),
    Hook(SCHEDULER + "run_batch", "after", lambda shared: shared.steps.end_step),
    # Pipeline ranks.
    Hook(SCHEDULER + "_pp_prepare_tensor_dict", "after", lambda shared: shared.stages.send),
    Hook(SCHEDULER + "_pp_prep_batch_result", "before", lambda shared: shared.stages.apply),
    # The model's own logprobs.
    Hook(
        SRT + "model_executor.model_runner.ModelRunner.sample",
        "after",
        lambda shared: shared.raw.after_sample,
    ),
    Hook(
        SRT + "layers.logprob_processor.compute_spec_logprobs",
        "after",
        lambda shared: shared.raw.after_verify,
    ),
    # Drafts that know what will be forced.
    Hook(
        SRT + "speculative.dspark_components.dspark_draft.DraftBlockProposer.propose",
        "after",
        lambda shared: shared.chains.foresee_block,
    ),
    Hook(
        SRT + "speculative.eagle_worker_common.build_eagle_verify_input",
        "before",
        lambda _: known_drafts.foresee_chain,
    ),
    Hook(
        # The worker's module is imported where it is needed: a CPU lacks kernels that it has.
        SRT + "speculative.spec_info.SpeculativeAlgorithm.create_worker",
        "after",
        lambda _: ngram_worker.make_choose_worker(OF_NGRAM),
    ),
    # A request ends, or is retracted.
    Hook(REQUEST + "update_finish_state", "around", lambda _: release.finish),
    Hook(REQUEST + "reset_for_retract", "after", lambda _: sampling.rewind),
    Hook(SCHEDULER + "_release_aborted_request", "after", lambda _: release.abandon),
    # Beams.
    _BeamHook(COORDINATOR + "validate_and_init", "around", lambda _: steps.attach),
    _BeamHook(
        BEAMS + "logits_capture.capture_pre_sample_logits",
        "before",
        lambda shared: shared.beams.edit,
    ),
    _BeamHook(BEAMS + "coordinator._rows_topk_logprobs", "around", lambda _: steps.defer),
    _BeamHook(COORDINATOR + "_select_group", "before", lambda _: steps.score),
    _BeamHook(GROUP + "advance_frontier", "before", lambda _: steps.grow),
    _BeamHook(COORDINATOR + "commit_prefill", "before", lambda _: steps.end_failed_prefill),
    _BeamHook(COORDINATOR + "commit_decode", "before", lambda _: steps.end_failed),
    _BeamHook(COORDINATOR + "_retire_group", "after", lambda _: results.finish),
    _BeamHook(BEAMS + "output.pack_beam_search_output", "after", lambda _: results.tell),
    # Prefill and decode apart.
    Hook(SCHEDULER + "_retire_aborted_prefill_result", "around", lambda _: disaggregated.retire),
    Hook(
        SCHEDULER + "handle_pending_bootstrap",
        "around",
        lambda _: disaggregated.tell_when_bootstrapped,
    ),
    Hook(
        CONNECTION + "BootstrapServer._setup_routes",
        "after",
        lambda shared: shared.peers.answer,
    ),
    Hook(
        CONNECTION + "Manager.try_ensure_parallel_info",
        "around",
        lambda shared: shared.peers.ask,
    ),
    Hook(CONNECTION + "Receiver.init", "after", lambda _: disaggregated.turn_away),
    Hook(DECODE + "prepare_abort", "around", lambda _: disaggregated.say_why),
    Hook(
        DECODE + "DecodeTransferQueue._commit_transfer_to_req",
        "after",
        lambda _: disaggregated.note_first,
    ),
    Hook(
        SCHEDULER + "get_new_prebuilt_batch",
        "around",
        lambda shared: shared.waiting_queue.hold_prebuilt,
    ),
)
