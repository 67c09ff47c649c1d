"""Times processors in SGLang's own process: a plugin that replaces the toolkit's.

With ``SGLANG_LP_TIMING_SIDE=ours`` it installs the toolkit and times its functions that run at
every step; otherwise it times SGLang's own function. It writes to the file that
``SGLANG_LP_TIMING`` names, one event and its seconds a line:

- ``apply``: a step's processors.
- ``finish``: deciding whether one request ends.
- ``step``: from the start of one step to the start of the next.
- ``wait``: a pending result was read; its seconds have no meaning.
- ``delay``: sampling was delayed; its seconds have no meaning.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partialmethod
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
        result = original(*args, **kwargs)
        if getattr(result, "delay_sample_func", None) is not None:
            _note("delay", 0.0)
        return result

    return clocked


def _install_ours() -> None:
    import sglang_lp.server
    from sglang_lp.server.scheduler import endings, pending, sampling, speculation

    update_finish_state, committed = endings.update_finish_state, pending._committed  # noqa: SLF001
    steps, trees = sampling.Steps, speculation.TreeSteps

    def noted_wait(batch: Any, result: Any) -> Iterator[list[int]]:
        _note("wait", 0.0)
        return committed(batch, result)

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

    for kind, name in (
        *((steps, "run"), (steps, "run_drafts")),
        *((trees, "capture"), (trees, "verify")),
    ):
        setattr(kind, name, partialmethod(_timed_method, getattr(kind, name)))
    endings.update_finish_state = timed_finish
    pending._committed = noted_wait  # noqa: SLF001
    sglang_lp.server.install()


def _timed_method(self: Any, apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _timed(apply, self, *args, **kwargs)


def _timed(apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    started = time.perf_counter()
    result = apply(*args, **kwargs)
    _note("apply", time.perf_counter() - started)
    return result


def _note(what: str, seconds: float) -> None:
    with Path(os.environ["SGLANG_LP_TIMING"]).open("a") as file:
        file.write(f"{what} {seconds:.9f}\n")
