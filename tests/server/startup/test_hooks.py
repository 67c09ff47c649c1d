"""Which functions of SGLang are hooked, seen on the real SGLang, which is then put back."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name

import pytest
from packaging.version import Version

from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from sglang_lp.errors import InstallError, PolicyError
from sglang_lp.processor import LogitProcessor
from sglang_lp.server import versions
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.front.fields import Reader
from sglang_lp.server.front.lists import Lists
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler.disaggregated import Peers
from sglang_lp.server.scheduler.gate import NoLoads, SchedulerGate, refuse_to_load
from sglang_lp.server.scheduler.raw_logprobs import RawSteps
from sglang_lp.server.scheduler.speculation import TreeSteps
from sglang_lp.server.scheduler.waiting_queue import WaitingQueue
from sglang_lp.server.startup import hooks, installation
from sglang_lp.server.startup.attribute_table import ATTRIBUTES, Uses
from sglang_lp.server.startup.hook_table import HOOKS
from sglang_lp.server.startup.hooks import put_in_place
from sglang_lp.server.startup.launch import Launch
from sglang_lp.server.versions import OLDEST
from sglang_lp.trust import Policy

STOCK = "sglang.srt.sampling.custom_logit_processor"
#: The hooks of this SGLang, and those of every server.
DUE = [hook for hook in HOOKS if hooks._is_due(hook, versions.version("sglang"))]
HOOKED = [hook for hook in DUE if hook.serves(Guard(Policy.default()))]


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


def methods_of(registry, kind):
    """Return the names of a class's methods that are hooks."""
    return {
        hook.__name__
        for hooks in registry._hooks.values()
        for _, hook, _ in hooks
        if isinstance(getattr(hook, "__self__", None), kind)
    }


def test_every_function_is_hooked_with_what_stands_there_for_it(registry):
    put_in_place()

    hooks = registered(registry)

    assert {target: kind for target, (kind, _) in hooks.items()} == {
        hook.target: hook.kind for hook in HOOKED
    }
    assert {target: hook for target, (_, hook) in hooks.items()} == dict(installation.installed)


def test_every_public_method_of_what_hooks_share_is_a_hook(registry, tmp_path, monkeypatch):
    policy = tmp_path / "policy.toml"
    policy.write_text("[effort]\nlow = 5\n")
    monkeypatch.setenv(installation.POLICY_VARIABLE, str(policy))
    put_in_place()

    kinds = Launch, Lists, Peers, RawSteps, Reader, SchedulerGate, TreeSteps, WaitingQueue
    called = {"keep_options"}  # by the hook around Ollama's endpoints
    for kind in kinds:
        public = {name for name in vars(kind) if name[0] != "_"}
        assert methods_of(registry, kind) == public - called
    assert methods_of(registry, Admission) == {"admit", "admit_stream"}


def test_fields_are_read_where_the_policy_has_them(registry):
    put_in_place()

    always = {"read_chat", "read_completion", "read_options", "keep_response", "read_response_form"}
    assert methods_of(registry, Reader) == always


def test_every_hook_that_decides_does_so_with_the_guard_of_the_process(registry):
    put_in_place()
    owners = [vars(hook.__self__) for _, hook in installation.installed if inspect.ismethod(hook)]
    guards = [one["_guard"] for one in owners if "_guard" in one]

    assert len(guards) > 10
    assert all(guard is installation.guard for guard in guards)


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


def test_an_sglang_that_was_not_tested_is_not_hooked(registry, monkeypatch):
    from sglang_lp.server import versions

    monkeypatch.delenv("SGLANG_LP_ALLOW_UNTESTED", raising=False)  # set by SUITE=canary
    monkeypatch.setattr(versions, "version", lambda _name: "0.5.24")
    with pytest.raises(InstallError, match=r"0\.5\.24"):
        put_in_place()

    assert registered(registry) == {}


def refused(registry, capfd):
    with pytest.raises(SystemExit) as end:
        registry.apply_hooks()
    assert end.value.code == 78
    return capfd.readouterr().err.rpartition("plugins: ")[2].strip().split(", ")


def rename(monkeypatch, target):
    """Take a function of SGLang from wherever its owner has it."""
    path, _, name = target.rpartition(".")
    owner = resolve_name(path)
    for one in getattr(owner, "__mro__", (owner,)):
        if name in vars(one):
            monkeypatch.delattr(one, name)


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


@pytest.mark.parametrize(
    "target", sorted({hook.target for hook in DUE if not hook.target.endswith("__")})
)
def test_a_function_that_sglang_renamed_keeps_a_server_from_starting(
    registry, monkeypatch, capfd, tmp_path, target
):
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[effort]\nlow = 5\n[[adapt]]\nclass = "support.processors.foreign:TargetToken"'
    )
    monkeypatch.setenv(installation.POLICY_VARIABLE, str(policy))
    put_in_place()
    # Others are left out; each takes SGLang's registry a while.
    some = {target, *(hook.target for hook in HOOKS if hook.kind == "replace")}
    monkeypatch.setattr(registry, "_patched", registry._hooks.keys() - some)
    monkeypatch.setattr(
        installation, "installed", [one for one in installation.installed if one[0] in some]
    )
    rename(monkeypatch, target)

    assert refused(registry, capfd) == [target]


def test_a_function_is_not_missed_before_the_release_that_has_it(registry, monkeypatch):
    newest = max(HOOKS, key=lambda hook: Version(hook.since))
    assert newest.since != OLDEST
    monkeypatch.setattr(versions, "version", lambda _name: OLDEST)
    rename(monkeypatch, newest.target)
    put_in_place()

    assert newest.target not in dict(installation.installed)


def test_of_a_function_with_two_forms_the_one_of_this_version_is_hooked(registry, monkeypatch):
    newest = HOOKS[0]
    forms = newest._replace(until="0.5.21"), newest._replace(target="json.loads", since="0.5.22")
    monkeypatch.setattr(hooks, "HOOKS", forms)
    monkeypatch.setattr(versions, "version", lambda _name: "0.5.22")
    put_in_place()

    assert [target for target, _ in installation.installed] == ["json.loads"]


def test_a_parameter_that_sglang_renamed_keeps_a_server_from_starting(registry, monkeypatch, capfd):
    from sglang.srt.managers.tp_worker import TpModelWorker

    def forward_batch_generation(
        self, batch, forward_batch=None, pp_proxy_tensors=None, verifies=False
    ):
        """Stand for another version's."""

    monkeypatch.setattr(TpModelWorker, "forward_batch_generation", forward_batch_generation)
    put_in_place()
    with pytest.raises(SystemExit):
        registry.apply_hooks()

    assert capfd.readouterr().err.endswith(
        f"SGLang {versions.version('sglang')} calls functions in another way than hooks read them, "
        "here with the parameters that differ: sglang.srt.managers.tp_worker.TpModelWorker."
        "forward_batch_generation (is_verify)\n"
    )


def test_attributes_that_sglang_renamed_are_all_named_and_the_process_ends(
    registry, monkeypatch, capfd
):
    renamed = [
        uses._replace(names=tuple(f"{name}_renamed" for name in uses.names)) for uses in ATTRIBUTES
    ]
    gone = Uses("sglang.srt.managers.scheduler.SchedulerRenamed", ("server_args",))
    earlier = Uses("sglang.srt.managers.scheduler.Scheduler", ("gone",), until="0.5.0")
    later = earlier._replace(since="9.9.9", until=None)
    monkeypatch.setattr(hooks, "ATTRIBUTES", (*renamed, gone, earlier, later))
    put_in_place()
    with pytest.raises(SystemExit) as end:
        registry.apply_hooks()

    assert end.value.code == 78
    said = capfd.readouterr().err.rpartition("what hooks use: ")[2].strip().split(", ")
    expected = {f"{uses.owner}.{name}" for uses in renamed for name in uses.names}
    assert {*said} == expected | {gone.owner}


@pytest.mark.parametrize("target", [hook.target for hook in HOOKED if hook.kind == "replace"])
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
    for target in {hook.target for hook in HOOKED}:
        registry.register(target, lambda *_args, **_kwargs: None, HookType[kind])
    registry.apply_hooks()

    assert installation.installed_guard() is not None
