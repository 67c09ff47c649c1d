"""Checks at start-up: arguments under which a guard would be missing, and the handshake by which
the process that serves HTTP learns that every scheduler is guarded by the same policy.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import InstallError
from sglang_lp.server.versions import speculative_algorithm
from sglang_lp.trust import Gate

if TYPE_CHECKING:
    from sglang_lp.server.guard import Guard

__all__ = ["check_launch", "make_sign", "make_verify_schedulers"]

_KEY = "sglang_lp"


def check_launch(_cls: Any, server_args: Any, *_args: Any, **_kwargs: Any) -> None:
    """Refuse to start where SGLang has processes that never load plugins."""
    workers = getattr(server_args, "tokenizer_worker_num", 1)
    if workers > 1:
        _refuse(f"--tokenizer-worker-num {workers}: SGLang loads no plugin in tokenizer workers")
    if getattr(server_args, "use_ray", False):
        _refuse("--use-ray: SGLang loads no plugin in Ray actors")


def make_sign(guard: Guard) -> Any:
    """Return the hook that adds a scheduler's policy to what it tells its parent."""

    def sign(info: dict[str, Any], scheduler: Any, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        guard.gate = Gate.SCHEDULER
        guard.vocab_size = scheduler.model_config.vocab_size
        guard.speculative = speculative_algorithm(scheduler.server_args)
        return {**info, _KEY: guard.fingerprint}

    return sign


def make_verify_schedulers(guard: Guard) -> Any:
    """Return the hook that checks every scheduler's answer before HTTP is served."""

    def verify(infos: list[dict[str, Any]], *_args: Any, **_kwargs: Any) -> None:
        for info in infos:
            if info.get(_KEY) != guard.fingerprint:
                _refuse("a scheduler process did not report the guard with this policy")

    return verify


def _refuse(why: str) -> None:
    error = InstallError(f"the guard would not be everywhere: {why}")
    os.write(2, f"sglang-lp: this server does not start: {error}\n".encode())
    raise SystemExit(78) from error
