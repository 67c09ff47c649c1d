"""Putting the guard in place in one process, and making sure that it is.

SGLang's plugin loader logs errors and goes on. A guard that is half in place is worse than none,
so whatever goes wrong here ends the process.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sglang_lp.errors import InstallError, SglangLpError
from sglang_lp.server.guard import Guard
from sglang_lp.trust import Policy

__all__ = ["POLICY_VARIABLE", "install", "installed_guard", "status"]

logger = logging.getLogger(__name__)

#: Environment variable that names the policy file.
POLICY_VARIABLE = "SGLANG_LP_POLICY"

_SRT = "sglang.srt."
_PROCESSOR_MODULE = _SRT + "sampling.custom_logit_processor"

#: What is in place in this process: hooked name -> our function. Empty until installed.
_installed: dict[str, Any] = {}
_guard: Guard | None = None


def install() -> None:
    """Put the guard in place; SGLang calls this in each of its processes.

    Raises:
        SystemExit: It cannot be put in place. SGLang's loader, which swallows every
            ``Exception``, lets this one pass.
    """
    if _installed:
        return
    try:
        _install()
    except Exception as error:  # noqa: BLE001 - whatever it is, the process must not serve
        _stop(error)


def status() -> Mapping[str, str]:
    """Return what is hooked in this process; empty where the guard is not in place."""
    return {
        target: "live" if _is_live(target, ours) else "lost" for target, ours in _installed.items()
    }


def installed_guard() -> Guard | None:
    """Return this process's guard if every hook of it is live, else ``None``."""
    return _guard if all(state == "live" for state in status().values()) else None


def _install() -> None:
    global _guard  # noqa: PLW0603 - one process, one guard
    from sglang_lp.processor import LogitProcessor
    from sglang_lp.server.admission import make_admit, make_supports_sampling_mask
    from sglang_lp.server.launch import check_launch, make_guard_schedulers, make_learn
    from sglang_lp.server.sampling import make_apply, make_delay
    from sglang_lp.server.sink import NoLoads, make_admit_req, make_from_str, refuse_to_load
    from sglang_lp.server.versions import check_version, has_sampling_mask

    version = check_version()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.sampling import custom_logit_processor as stock

    # Closed before anything else can go wrong.
    stock.dill = NoLoads(stock.dill)
    policy_file = os.environ.get(POLICY_VARIABLE)
    policy = Policy.from_toml(Path(policy_file)) if policy_file else Policy.default()
    guard = Guard(policy)
    hooks: list[tuple[str, Any, HookType]] = [
        (_PROCESSOR_MODULE + "._cache_from_str", refuse_to_load, HookType.REPLACE),
        (
            _PROCESSOR_MODULE + ".CustomLogitProcessor.from_str",
            make_from_str(guard),
            HookType.REPLACE,
        ),
        (
            _SRT + "managers.tokenizer_manager.TokenizerManager._create_tokenized_object",
            make_admit(guard),
            HookType.AFTER,
        ),
        (_SRT + "managers.schedule_batch.Req.__init__", make_admit_req(guard), HookType.AFTER),
        (_SRT + "layers.sampler.apply_custom_logit_processor", make_apply(), HookType.REPLACE),
        (
            _SRT + "managers.tp_worker.TpModelWorker.forward_batch_generation",
            make_delay(),
            HookType.AROUND,
        ),
        (
            _SRT + "entrypoints.engine.Engine._launch_subprocesses",
            check_launch,
            HookType.BEFORE,
        ),
        (
            _SRT + "entrypoints.engine.Engine._launch_scheduler_processes",
            make_guard_schedulers(guard),
            HookType.AROUND,
        ),
        (_SRT + "managers.scheduler.Scheduler.get_init_info", make_learn(guard), HookType.AFTER),
    ]
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
        _installed[target] = hook
    _guard = guard
    _verify_after(HookRegistry)
    logger.info("sglang-lp guards this process (SGLang %s)", version)


def _verify_after(registry: Any) -> None:
    """Check every hook once the registry has applied them all.

    The registry logs a hook that it cannot apply and goes on; another plugin may replace what
    this one put in place.
    """
    original: Callable[[], None] = registry.apply_hooks

    def apply_hooks() -> None:
        original()
        lost = [target for target, ours in _installed.items() if not _is_live(target, ours)]
        if lost:
            _stop(InstallError(f"not in place after SGLang applied its plugins: {lost}"))

    registry.apply_hooks = apply_hooks


def _is_live(target: str, ours: Any) -> bool:
    """Tell whether calling ``target`` leads to our function, through whatever wraps it."""
    try:
        function = pkgutil.resolve_name(target)
    except (AttributeError, ImportError):
        return False
    function = getattr(function, "__func__", function)
    seen = 0
    while function is not None and seen < 20:  # noqa: PLR2004 - far more plugins than exist
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        if ours in cells:
            return True
        function = getattr(function, "__wrapped__", None)
        seen += 1
    return False


def _stop(error: Exception) -> None:
    known = isinstance(error, SglangLpError)
    logger.critical("sglang-lp: this process does not serve: %s", error, exc_info=not known)
    sys.stderr.write(f"sglang-lp: this process does not serve: {error}\n")
    raise SystemExit(78)  # EX_CONFIG
