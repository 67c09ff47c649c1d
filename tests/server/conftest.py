"""Fixtures of the gate tests: this toolkit's guard, and SGLang restored afterwards."""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from types import ModuleType

import pytest

from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.startup import installation
from sglang_lp.server.startup.hook_table import HOOKS
from sglang_lp.trust import Policy
from support.hooking import propagate


@pytest.fixture
def guard():
    return Guard(Policy.default())


@pytest.fixture
def sglang(monkeypatch):
    """SGLang without plugins, to be hooked; whatever a test does to it is undone."""
    from sglang.srt.plugins import hook_registry
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.sampling import custom_logit_processor
    from sglang.srt.server_args import ServerArgs

    from sglang_lp.builtins import ChainLogitProcessor

    monkeypatch.delenv(installation.POLICY_VARIABLE, raising=False)
    monkeypatch.setattr(installation, "installed", [])
    monkeypatch.setattr(installation, "guard", None)
    monkeypatch.setattr(installation, "schedulers_are_guarded", False)
    monkeypatch.setattr(hook_registry, "_propagate_patch", propagate)
    HookRegistry.reset()
    custom_logit_processor._cache_from_str.cache_clear()  # of what other tests unpickled
    # Importing them before the modules are listed.
    hooked = {resolve_name(hook.target.rpartition(".")[0]) for hook in HOOKS}
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("sglang.")]
    # SGLang keeps some objects that are no modules among its modules.
    owners = {one for one in modules if isinstance(one, ModuleType)}
    owners |= {*hooked, ServerArgs, HookRegistry, ChainLogitProcessor}
    before = [(owner, dict(vars(owner))) for owner in owners]
    yield
    for owner, names in before:
        for name, value in names.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
    HookRegistry.reset()
