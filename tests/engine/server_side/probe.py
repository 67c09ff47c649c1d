"""A second SGLang plugin that writes down of each step whether its sampling is delayed."""

from __future__ import annotations

from typing import Any

from recording import write


def install() -> None:
    """Hook the step; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation",
        _after_step,
        HookType.AFTER,
    )


def _after_step(result: Any, worker: Any, batch: Any = None, *_args: Any, **_kwargs: Any) -> None:
    if batch is not None and batch.reqs:
        write(
            "step",
            rids=[req.rid for req in batch.reqs],
            delayed=result.delay_sample_func is not None,
        )
