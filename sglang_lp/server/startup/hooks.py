"""Which functions of SGLang are hooked, and with what.

SGLang's plugin loader logs errors and goes on. A guard that is half in place is worse than none,
so whatever goes wrong here ends the process (see ``sglang_lp.server.install``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.startup import installation
from sglang_lp.server.startup.installation import policy_in_force, refuse
from sglang_lp.server.startup.launch import (
    check_engine,
    check_launch,
    check_parsed,
    make_guard_schedulers,
    make_learn,
    make_learn_ahead,
)

if TYPE_CHECKING:
    from sglang_lp.server.scheduler.waiting_queue import WaitingQueue

__all__ = ["put_in_place"]

_SRT = "sglang.srt."
_PROCESSOR_MODULE = _SRT + "sampling.custom_logit_processor"
#: What not every supported version has.
_ABORTED = (_SRT + "managers.scheduler.Scheduler._release_aborted_request",)
_COMPILED = (_SRT + "constrained.grammar_manager.GrammarManager.get_ready_grammar_requests",)
_META_INFO = (_SRT + "managers.tokenizer_manager.TokenizerManager.update_request_meta_info",)
_JOINED = (_SRT + "entrypoints.engine.write_data_for_multi_tokenizer",)
_OPENAI = _SRT + "entrypoints.openai."
_CHAT = _OPENAI + "serving_chat.OpenAIServingChat._convert_to_internal_request"
_COMPLETION = _OPENAI + "serving_completions.OpenAIServingCompletion._convert_to_internal_request"
_RESPONSES = _OPENAI + "protocol.ResponsesRequest.to_sampling_params"
_SETTERS = (
    _SRT + "sampling.sampling_params.set_request_reasoning_end_token_ids",
    _SRT + "sampling.sampling_params.set_request_reasoning_in_grammar",
)


def put_in_place() -> None:
    """Register every hook, and have them checked once SGLang has applied them.

    Raises:
        SglangLpError: An SGLang that is not supported, or a policy that cannot be enforced.
    """
    if installation.installed:
        return
    from sglang_lp._engine.arrivals import Arrivals
    from sglang_lp.processor import LogitProcessor
    from sglang_lp.server.front.admission import (
        make_admit,
        make_admit_list,
        make_admit_stream,
        make_supports_sampling_mask,
    )
    from sglang_lp.server.front.header import make_begin
    from sglang_lp.server.front.meta_info import unwrap
    from sglang_lp.server.front.xargs import read_xargs
    from sglang_lp.server.gate.reserved_keys import remember
    from sglang_lp.server.scheduler.gate import (
        NoLoads,
        make_admit_req,
        make_from_str,
        refuse_to_load,
    )
    from sglang_lp.server.scheduler.pending import PendingResults
    from sglang_lp.server.scheduler.release import abandon, finish
    from sglang_lp.server.scheduler.sampling import Steps, make_apply, rewind
    from sglang_lp.server.scheduler.speculation import make_capture, make_verify
    from sglang_lp.server.scheduler.waiting_queue import WaitingQueue, make_hold, make_hold_compiled
    from sglang_lp.server.startup.workers import refuse_to_be_joined
    from sglang_lp.server.versions import check_version, has_sampling_mask, optional

    check_version()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.sampling import custom_logit_processor as stock

    # Closed before anything else can go wrong.
    stock.dill = NoLoads(stock.dill)
    guard = Guard(policy_in_force())
    pending = PendingResults()
    arrivals = Arrivals()
    waiting_queue = WaitingQueue(arrivals)
    steps = Steps(pending)
    hooks: list[tuple[str, Any, HookType]] = [
        (_PROCESSOR_MODULE + "._cache_from_str", refuse_to_load, HookType.REPLACE),
        (
            _PROCESSOR_MODULE + ".CustomLogitProcessor.from_str",
            make_from_str(guard),
            HookType.REPLACE,
        ),
        (
            _SRT + "managers.tokenizer_manager.TokenizerManager.init_tokenizer_and_processor",
            make_learn_ahead(guard),
            HookType.AFTER,
        ),
        (
            _SRT + "managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
            make_admit(guard),
            HookType.AFTER,
        ),
        (
            _SRT + "managers.tokenizer_manager.TokenizerManager.create_abort_task",
            make_admit_stream(guard),
            HookType.BEFORE,
        ),
        (
            _SRT + "managers.tokenizer_manager.TokenizerManager._handle_batch_request",
            make_admit_list(guard),
            HookType.BEFORE,
        ),
        (
            _SRT + "managers.schedule_batch.Req.__init__",
            make_admit_req(guard, pending, arrivals),
            HookType.AFTER,
        ),
        (
            _SRT + "managers.scheduler.Scheduler.get_new_batch_prefill",
            make_hold(guard, waiting_queue),
            HookType.AROUND,
        ),
        (_SRT + "layers.sampler.apply_custom_logit_processor", make_apply(steps), HookType.REPLACE),
        (
            _SRT + "managers.tp_worker.TpModelWorker.forward_batch_generation",
            make_capture(steps.may_act),
            HookType.BEFORE,
        ),
        (
            _SRT + "speculative.eagle_utils.eagle_sample",
            make_verify(steps.run_drafts),
            HookType.BEFORE,
        ),
        (
            _SRT + "managers.schedule_batch.Req.update_finish_state",
            finish,
            HookType.AROUND,
        ),
        (_SRT + "managers.schedule_batch.Req.reset_for_retract", rewind, HookType.AFTER),
        (
            _SRT + "managers.tokenizer_manager.TokenizerManager.__init__",
            make_begin(guard),
            HookType.AFTER,
        ),
        (_SRT + "server_args.prepare_server_args", check_parsed, HookType.AFTER),
        (_SRT + "server_args.ServerArgs.check_server_args", check_launch, HookType.BEFORE),
        (
            _SRT + "entrypoints.engine.Engine._launch_subprocesses",
            check_engine,
            HookType.BEFORE,
        ),
        (
            _SRT + "entrypoints.engine.Engine._launch_scheduler_processes",
            make_guard_schedulers(guard),
            HookType.AROUND,
        ),
        (
            _SRT + "managers.scheduler.Scheduler.get_init_info",
            make_learn(guard, pending),
            HookType.AFTER,
        ),
    ]
    readers = (
        _routed() + (_readers() if guard.rules.reads_effort else []) + _halves(guard, waiting_queue)
    )
    hooks += [(target, hook, kind) for target, hook, kind in readers if optional(target)]
    if _adapts_vllm(guard):
        hooks += [(target, read_xargs, HookType.BEFORE) for target in optional(_CHAT, _COMPLETION)]
    hooks += [(target, refuse_to_be_joined, HookType.BEFORE) for target in optional(*_JOINED)]
    hooks += [(target, remember, HookType.AROUND) for target in optional(*_SETTERS)]
    hooks += [(target, abandon, HookType.AFTER) for target in optional(*_ABORTED)]
    hold_compiled = make_hold_compiled(waiting_queue)
    hooks += [(target, hold_compiled, HookType.AROUND) for target in optional(*_COMPILED)]
    hooks += [(target, unwrap, HookType.AFTER) for target in optional(*_META_INFO)]
    if has_sampling_mask():
        hooks.append(
            (
                _PROCESSOR_MODULE + ".supports_sampling_mask",
                make_supports_sampling_mask(guard),
                HookType.REPLACE,
            )
        )
    stock.CustomLogitProcessor.register(LogitProcessor)
    for target, hook, kind in hooks:
        HookRegistry.register(target, hook, kind)
        installation.installed.append((target, hook))
    installation.guard = guard
    _verify_after(HookRegistry, {name for name, _, kind in hooks if kind is HookType.REPLACE})


def _routed() -> list[tuple[str, Any, Any]]:
    """Return the hooks that read what comes in ``metadata``."""
    from sglang.srt.plugins.hook_registry import HookType

    from sglang_lp.server.front import routed

    return [
        (_CHAT, routed.read_body, HookType.AFTER),
        (_COMPLETION, routed.read_body, HookType.AFTER),
        (_RESPONSES, routed.read_responses, HookType.AFTER),
    ]


def _adapts_vllm(guard: Guard) -> bool:
    from sglang_lp.adapters import AdaptedProcessor

    return any(
        issubclass(one.processor, AdaptedProcessor) and one.processor.interface.startswith("vllm")
        for one in guard.verifier.allowed
    )


def _readers() -> list[tuple[str, Any, Any]]:
    """Return the hooks that read budgets and efforts; SGLang's front ends are imported for them."""
    from sglang.srt.plugins.hook_registry import HookType

    from sglang_lp.server.front import efforts

    return [
        (
            _OPENAI + "protocol.ChatCompletionRequest.to_sampling_params",
            efforts.read_chat,
            HookType.AFTER,
        ),
        (_RESPONSES, efforts.read_responses, HookType.AFTER),
        (_COMPLETION, efforts.read_completion, HookType.AFTER),
        (
            _SRT
            + "entrypoints.anthropic.serving.AnthropicServing"
            + "._convert_to_chat_completion_request",
            efforts.read_anthropic,
            HookType.AFTER,
        ),
        (
            _SRT + "managers.tokenizer_manager.TokenizerManager.generate_request",
            efforts.read_generate,
            HookType.BEFORE,
        ),
    ]


def _halves(guard: Guard, waiting_queue: WaitingQueue) -> list[tuple[str, Any, Any]]:
    """Return the hooks of prefill and decode servers; SGLang 0.5.18 has not all of them."""
    from sglang.srt.plugins.hook_registry import HookType

    from sglang_lp.server.scheduler import disaggregated
    from sglang_lp.server.scheduler.waiting_queue import make_hold_prebuilt

    scheduler = _SRT + "managers.scheduler.Scheduler."
    connection = _SRT + "disaggregation.common.conn.CommonKV"
    decode = _SRT + "disaggregation.decode."
    return [
        (
            scheduler + "_retire_aborted_prefill_result",
            disaggregated.retire,
            HookType.AROUND,
        ),
        (
            scheduler + "handle_pending_bootstrap",
            disaggregated.tell_when_bootstrapped,
            HookType.AROUND,
        ),
        (
            connection + "BootstrapServer._setup_routes",
            disaggregated.make_answer(guard),
            HookType.AFTER,
        ),
        (
            connection + "Manager.try_ensure_parallel_info",
            disaggregated.make_ask(guard),
            HookType.AROUND,
        ),
        (connection + "Receiver.init", disaggregated.turn_away, HookType.AFTER),
        (decode + "prepare_abort", disaggregated.say_why, HookType.AROUND),
        (
            decode + "DecodeTransferQueue._commit_transfer_to_req",
            disaggregated.note_first,
            HookType.AFTER,
        ),
        (
            scheduler + "get_new_prebuilt_batch",
            make_hold_prebuilt(waiting_queue, disaggregated.make_resume(guard)),
            HookType.AROUND,
        ),
    ]


def _verify_after(registry: Any, replaced: set[str]) -> None:
    """Check every hook once the registry has applied them all.

    The registry logs a hook that it cannot apply and goes on, and lets the last of several
    plugins that replace one function win.
    """
    original: Callable[[], None] = registry.apply_hooks

    def apply_hooks() -> None:
        original()
        lost = [target for target, state in installation.status().items() if state != "live"]
        for target in replaced:
            last = [hook for kind, hook, _ in registry._hooks[target] if kind.value == "replace"]  # noqa: SLF001
            if (target, last[-1]) not in installation.installed:
                lost.append(target)
        if lost:
            refuse(f"not in place after SGLang applied its plugins: {', '.join(sorted(lost))}")

    registry.apply_hooks = apply_hooks
