"""Time what processors cost in SGLang's own process: a plugin that stands in for the toolkit's.

With ``SGLANG_LP_TIMING_SIDE=ours`` it puts the toolkit in place, with its functions that run at
every step under a stopwatch; otherwise SGLang's own function is. Each line in the file that
``SGLANG_LP_TIMING`` names is a thing and its seconds: ``apply`` is what a step spent in its
processors, ``finish`` in deciding whether one request ends, ``step`` is the time from the start of
one step to that of the next.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def install() -> None:
    """Put the stopwatch in place; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if os.environ["SGLANG_LP_TIMING_SIDE"] == "ours":
        _install_ours()
    else:
        HookRegistry.register(
            "sglang.srt.layers.sampler.apply_custom_logit_processor", _timed, HookType.AROUND
        )
    HookRegistry.register(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        _make_clocked(),
        HookType.AROUND,
    )


def _make_clocked() -> Any:
    started = time.perf_counter()

    def clocked(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal started
        before, started = started, time.perf_counter()
        _note("step", started - before)
        return original(*args, **kwargs)

    return clocked


def _install_ours() -> None:
    import sglang_lp.server
    from sglang_lp.server import endings, sampling

    make_apply, update_finish_state = sampling.make_apply, endings.update_finish_state

    def make_timed_apply(steps: Any) -> Any:
        apply = make_apply(steps)

        def timed(*args: Any, **kwargs: Any) -> None:
            _timed(apply, *args, **kwargs)

        return timed

    def timed_finish(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inside = 0.0

        def sglangs(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            started = time.perf_counter()
            result = original(*args, **kwargs)
            inside = time.perf_counter() - started
            return result

        started = time.perf_counter()
        result = update_finish_state(sglangs, *args, **kwargs)
        _note("finish", time.perf_counter() - started - inside)
        return result

    sampling.make_apply = make_timed_apply
    endings.update_finish_state = timed_finish
    sglang_lp.server.install()


def _timed(apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    started = time.perf_counter()
    result = apply(*args, **kwargs)
    _note("apply", time.perf_counter() - started)
    return result


def _note(what: str, seconds: float) -> None:
    with Path(os.environ["SGLANG_LP_TIMING"]).open("a") as file:
        file.write(f"{what} {seconds:.9f}\n")
