"""What the tests of the gates share: this toolkit's guard, and SGLang put back as it was."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.startup import installation
from sglang_lp.trust import Policy


@pytest.fixture
def guard():
    return Guard(Policy.default())


@pytest.fixture
def sglang(monkeypatch):
    """SGLang without plugins, to be hooked; whatever a test does to it is undone."""
    import sglang.srt.disaggregation.common.conn
    import sglang.srt.disaggregation.decode
    import sglang.srt.entrypoints.engine
    import sglang.srt.managers.scheduler
    import sglang.srt.managers.tp_worker
    from sglang.srt.plugins.hook_registry import HookRegistry
    from sglang.srt.sampling import custom_logit_processor

    from sglang_lp.builtins import ChainLogitProcessor

    monkeypatch.delenv(installation.POLICY_VARIABLE, raising=False)
    monkeypatch.setattr(installation, "installed", [])
    monkeypatch.setattr(installation, "guard", None)
    monkeypatch.setattr(installation, "schedulers_are_guarded", False)
    HookRegistry.reset()
    custom_logit_processor._cache_from_str.cache_clear()  # of what other tests unpickled
    owners: list[Any] = [
        *(module for name, module in list(sys.modules.items()) if name.startswith("sglang.")),
        *(
            custom_logit_processor.CustomLogitProcessor,
            sglang.srt.managers.tokenizer_manager.TokenizerManager,
            sglang.srt.managers.schedule_batch.Req,
            sglang.srt.managers.tp_worker.TpModelWorker,
            sglang.srt.entrypoints.engine.Engine,
            sglang.srt.managers.scheduler.Scheduler,
            sglang.srt.server_args.ServerArgs,
            sglang.srt.disaggregation.common.conn.CommonKVBootstrapServer,
            sglang.srt.disaggregation.common.conn.CommonKVManager,
            sglang.srt.disaggregation.common.conn.CommonKVReceiver,
            sglang.srt.disaggregation.decode.DecodeTransferQueue,
            HookRegistry,
            ChainLogitProcessor,
        ),
    ]
    # SGLang keeps some objects that are no modules among its modules.
    owners = [owner for owner in owners if isinstance(owner, type | ModuleType)]
    before = [(owner, dict(vars(owner))) for owner in owners]
    yield
    for owner, names in before:
        for name, value in names.items():
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
    HookRegistry.reset()
