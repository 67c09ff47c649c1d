"""Which functions of SGLang are hooked, seen on the real SGLang, which is then put back."""

from __future__ import annotations

import inspect

import pytest

from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from sglang_lp.errors import InstallError, PolicyError
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.scheduler.gate import NoLoads, refuse_to_load
from sglang_lp.server.startup import installation
from sglang_lp.server.startup.hooks import put_in_place

ANTHROPIC = "sglang.srt.entrypoints.anthropic"
OPENAI = "sglang.srt.entrypoints.openai"
CONNECTION = "sglang.srt.disaggregation.common.conn.CommonKV"
STOCK = "sglang.srt.sampling.custom_logit_processor"
HOOKED = {
    "sglang.srt.entrypoints.engine.write_data_for_multi_tokenizer": "before",
    f"{STOCK}._cache_from_str": "replace",
    f"{STOCK}.CustomLogitProcessor.from_str": "replace",
    f"{STOCK}.supports_sampling_mask": "replace",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.init_tokenizer_and_processor": "after",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object": "after",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.create_abort_task": "before",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_batch_request": "before",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.update_request_meta_info": "after",
    "sglang.srt.managers.tokenizer_manager.TokenizerManager.__init__": "after",
    "sglang.srt.managers.scheduler.Scheduler._release_aborted_request": "after",
    "sglang.srt.sampling.sampling_params.set_request_reasoning_end_token_ids": "around",
    "sglang.srt.sampling.sampling_params.set_request_reasoning_in_grammar": "around",
    "sglang.srt.managers.schedule_batch.Req.__init__": "after",
    "sglang.srt.layers.sampler.apply_custom_logit_processor": "replace",
    "sglang.srt.server_args.prepare_server_args": "after",
    "sglang.srt.server_args.ServerArgs.check_server_args": "before",
    "sglang.srt.managers.schedule_batch.Req.update_finish_state": "around",
    "sglang.srt.managers.schedule_batch.Req.reset_for_retract": "after",
    "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation": "before",
    "sglang.srt.speculative.eagle_utils.eagle_sample": "before",
    "sglang.srt.entrypoints.engine.Engine._launch_subprocesses": "before",
    "sglang.srt.entrypoints.engine.Engine._launch_scheduler_processes": "around",
    "sglang.srt.managers.scheduler.Scheduler.get_init_info": "after",
    "sglang.srt.managers.scheduler.Scheduler.get_new_batch_prefill": "around",
    "sglang.srt.managers.scheduler.Scheduler.get_new_prebuilt_batch": "around",
    "sglang.srt.constrained.grammar_manager.GrammarManager.get_ready_grammar_requests": "around",
    f"{OPENAI}.serving_chat.OpenAIServingChat._convert_to_internal_request": "after",
    f"{OPENAI}.serving_completions.OpenAIServingCompletion._convert_to_internal_request": "after",
    f"{OPENAI}.protocol.ResponsesRequest.to_sampling_params": "after",
    "sglang.srt.managers.scheduler.Scheduler._retire_aborted_prefill_result": "around",
    "sglang.srt.managers.scheduler.Scheduler.handle_pending_bootstrap": "around",
    f"{CONNECTION}BootstrapServer._setup_routes": "after",
    f"{CONNECTION}Manager.try_ensure_parallel_info": "around",
    f"{CONNECTION}Receiver.init": "after",
    "sglang.srt.disaggregation.decode.prepare_abort": "around",
    "sglang.srt.disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req": "after",
}


@pytest.fixture
def registry(sglang):
    from sglang.srt.plugins.hook_registry import HookRegistry

    return HookRegistry


def registered(registry):
    return {
        target: (kind.value, hook)
        for target, hooks in registry._hooks.items()
        for kind, hook, _ in hooks
    }


def hooked_by(registry, module):
    """Return what a module's functions stand at, and on which side."""
    return {
        (target, kind.value)
        for target, hooks in registry._hooks.items()
        for kind, hook, _ in hooks
        if hook.__module__ == f"sglang_lp.server.front.{module}"
    }


def test_every_function_is_hooked_with_what_stands_there_for_it(registry):
    put_in_place()
    hooks = registered(registry)

    assert {target: kind for target, (kind, _) in hooks.items()} == HOOKED
    assert {target: hook for target, (_, hook) in hooks.items()} == dict(installation.installed)
    names = {hook.__name__ for _, hook in hooks.values()}
    assert names == {
        *("refuse_to_load", "from_str", "supports_sampling_mask", "admit", "admit_stream"),
        *("admit_req", "apply_custom_logit_processor", "capture", "verify"),
        *("admit_list", "finish", "abandon", "remember", "refuse_to_be_joined"),
        *("check_launch", "check_parsed", "check_engine"),
        *("launch", "learn", "rewind", "begin", "unwrap", "read_body", "read_responses"),
        *("retire", "tell_when_bootstrapped", "answer", "ask", "turn_away", "say_why"),
        *("note_first", "hold", "hold_compiled"),
    }


def test_budgets_and_efforts_are_read_where_the_policy_has_them(registry, tmp_path, monkeypatch):
    policy = tmp_path / "policy.toml"
    policy.write_text("[effort]\nlow = 5")
    monkeypatch.setenv(installation.POLICY_VARIABLE, str(policy))
    put_in_place()

    assert hooked_by(registry, "efforts") == {
        (f"{OPENAI}.protocol.ChatCompletionRequest.to_sampling_params", "after"),
        (f"{OPENAI}.protocol.ResponsesRequest.to_sampling_params", "after"),
        (
            f"{OPENAI}.serving_completions.OpenAIServingCompletion._convert_to_internal_request",
            "after",
        ),
        (
            f"{ANTHROPIC}.serving.AnthropicServing._convert_to_chat_completion_request",
            "after",
        ),
        ("sglang.srt.managers.tokenizer_manager.TokenizerManager.generate_request", "before"),
    }


def test_the_field_of_vllms_clients_is_read_where_the_policy_adapts_a_class_of_vllm(
    registry, tmp_path, monkeypatch
):
    policy = tmp_path / "policy.toml"
    policy.write_text('[[adapt]]\nclass = "support.foreign:TargetToken"')
    monkeypatch.setenv(installation.POLICY_VARIABLE, str(policy))
    put_in_place()

    convert = "_convert_to_internal_request"
    assert hooked_by(registry, "xargs") == {
        (f"{OPENAI}.serving_chat.OpenAIServingChat.{convert}", "before"),
        (f"{OPENAI}.serving_completions.OpenAIServingCompletion.{convert}", "before"),
    }


def test_every_hook_that_decides_does_so_with_the_guard_of_the_process(registry):
    put_in_place()
    guards = {
        target: inspect.getclosurevars(hook).nonlocals.get("guard")
        for target, hook in installation.installed
    }

    assert {target for target, guard in guards.items() if guard is installation.guard} == {
        f"{STOCK}.CustomLogitProcessor.from_str",
        f"{STOCK}.supports_sampling_mask",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.init_tokenizer_and_processor",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.create_abort_task",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_batch_request",
        "sglang.srt.managers.schedule_batch.Req.__init__",
        "sglang.srt.entrypoints.engine.Engine._launch_scheduler_processes",
        "sglang.srt.managers.scheduler.Scheduler.get_init_info",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.__init__",
        f"{CONNECTION}BootstrapServer._setup_routes",
        f"{CONNECTION}Manager.try_ensure_parallel_info",
        "sglang.srt.managers.scheduler.Scheduler.get_new_batch_prefill",
    }
    prebuilt = "sglang.srt.managers.scheduler.Scheduler.get_new_prebuilt_batch"
    hold = dict(installation.installed)[prebuilt]
    resume = inspect.getclosurevars(hold).nonlocals["resume"]
    assert inspect.getclosurevars(resume).nonlocals["guard"] is installation.guard


def test_once_sglang_applied_them_every_hook_is_live_and_the_guard_is_known(registry):
    put_in_place()
    assert installation.installed_guard() is None
    registry.apply_hooks()

    assert set(installation.status().values()) == {"live"}
    assert installation.installed_guard() is installation.guard
    assert installation.guard is not None


def test_nothing_can_be_unpickled_even_before_hooks_are_applied(sglang):
    from sglang.srt.sampling import custom_logit_processor as stock

    put_in_place()

    assert isinstance(stock.dill, NoLoads)
    with pytest.raises(InstallError):
        stock._cache_from_str(DisallowedTokensLogitsProcessor.to_str())
    assert dict(installation.installed)[f"{STOCK}._cache_from_str"] is refuse_to_load


# Construction 60: hooks leave the original within reach of other code in the process.
def test_the_function_behind_the_hook_cannot_unpickle_either(registry):
    from sglang.srt.sampling import custom_logit_processor as stock

    put_in_place()
    registry.apply_hooks()
    original = stock._cache_from_str.__wrapped__

    assert original.__module__ == STOCK
    with pytest.raises(InstallError):
        original(DisallowedTokensLogitsProcessor.to_str())


def test_sglang_knows_this_toolkits_classes_as_processors(sglang):
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    put_in_place()

    assert issubclass(LogitProcessor, CustomLogitProcessor)


def test_it_is_done_once(registry):
    put_in_place()
    before, guard = registered(registry), installation.guard
    put_in_place()

    assert registered(registry) == before
    assert installation.guard is guard


def test_the_policy_is_the_one_that_the_environment_names(sglang, monkeypatch, tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text("builtins = false\nstock = 'deny'\n")
    monkeypatch.setenv("SGLANG_LP_POLICY", str(policy))
    put_in_place()

    assert installation.guard.verifier.allowed == ()


def test_without_one_the_built_ins_are_allowed(sglang, monkeypatch):
    monkeypatch.setenv("SGLANG_LP_POLICY", "")
    put_in_place()

    assert installation.guard.verifier.resolve("DisallowedTokensLogitsProcessor")


def test_a_policy_that_cannot_be_read_leaves_sglang_closed(registry, monkeypatch, tmp_path):
    from sglang.srt.sampling import custom_logit_processor as stock

    monkeypatch.setenv("SGLANG_LP_POLICY", str(tmp_path / "none.toml"))
    with pytest.raises(PolicyError):
        put_in_place()

    assert isinstance(stock.dill, NoLoads)
    assert registered(registry) == {}
    assert installation.guard is None


def test_an_sglang_without_the_sampling_mask_is_hooked_without_it(registry, monkeypatch):
    from sglang.srt.sampling import custom_logit_processor as stock

    monkeypatch.delattr(stock, "supports_sampling_mask", raising=False)
    put_in_place()
    registry.apply_hooks()

    assert registered(registry).keys() == HOOKED.keys() - {f"{STOCK}.supports_sampling_mask"}
    assert installation.installed_guard() is not None


def test_an_sglang_that_was_not_tested_is_not_hooked(registry, monkeypatch):
    from sglang_lp.server import versions

    monkeypatch.delenv("SGLANG_LP_ALLOW_UNTESTED", raising=False)  # `make canary` sets it
    monkeypatch.setattr(versions, "version", lambda _name: "0.5.24")
    with pytest.raises(InstallError, match=r"0\.5\.24"):
        put_in_place()

    assert registered(registry) == {}


def refused(registry, capfd):
    with pytest.raises(SystemExit) as end:
        registry.apply_hooks()
    assert end.value.code == 78
    return capfd.readouterr().err.rpartition("plugins: ")[2].strip().split(", ")


def test_functions_that_sglang_renamed_are_all_named_and_the_process_ends(
    registry, monkeypatch, capfd
):
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    put_in_place()
    monkeypatch.delattr(TokenizerManager, "create_abort_task")
    monkeypatch.delattr(Scheduler, "get_init_info")

    assert refused(registry, capfd) == [
        "sglang.srt.managers.scheduler.Scheduler.get_init_info",
        "sglang.srt.managers.tokenizer_manager.TokenizerManager.create_abort_task",
    ]


@pytest.mark.parametrize("target", [target for target, kind in HOOKED.items() if kind == "replace"])
def test_another_plugin_that_replaces_what_this_one_replaces_ends_the_process(
    registry, capfd, target
):
    from sglang.srt.plugins.hook_registry import HookType

    put_in_place()
    registry.register(target, len, HookType.REPLACE)

    assert refused(registry, capfd) == [target]


@pytest.mark.parametrize("kind", ["AROUND", "BEFORE", "AFTER"])
def test_another_plugin_may_wrap_what_this_one_replaces(registry, kind):
    from sglang.srt.plugins.hook_registry import HookType

    put_in_place()
    for target in HOOKED:
        registry.register(target, lambda *_args, **_kwargs: None, HookType[kind])
    registry.apply_hooks()

    assert installation.installed_guard() is not None
