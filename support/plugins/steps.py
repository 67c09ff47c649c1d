"""An SGLang plugin for tests: times every step inside the scheduler.

A step lasts from the choice of a batch to the choice of the next: its forward, its sampling, and
the results and new requests that are processed meanwhile. Idle rounds do not count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from support.settings import RECORD

#: Beginning of the last step and whether it had a batch, if there was one.
_last: tuple[int, int, bool] | None = None


class Steps(NamedTuple):
    """A server's work in a period.

    Attributes:
        wall: Seconds of each step.
        cpu: Seconds that the scheduler's thread worked in each step, whatever else the machine did.
        retracted: How often a request was retracted.
    """

    wall: list[float]
    cpu: list[float]
    retracted: int


def install() -> None:
    """Hook the scheduler; SGLang calls this in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.managers.scheduler.Scheduler.get_next_batch_to_run",
        _begin_step,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.srt.managers.schedule_batch.Req.reset_for_retract", _retracted, HookType.AFTER
    )


def _begin_step(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    global _last  # noqa: PLW0603 - one scheduler in a process
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    if _last is not None and _last[2]:
        _write(f"{wall - _last[0]} {cpu - _last[1]}\n")
    plan = original(*args, **kwargs)
    _last = wall, cpu, plan.batch_to_run is not None
    return plan


def _retracted(*_args: Any, **_kwargs: Any) -> None:
    _write("retracted\n")


def _write(line: str) -> None:
    descriptor = os.open(file_of(Path(os.environ[RECORD])), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def file_of(record: Path) -> Path:
    """Return where the steps of a server with this record are written."""
    return record.with_suffix(".steps")


def read(record: Path, start: int) -> Steps:
    """Return the records after an offset in bytes."""
    wall, cpu, retracted = [], [], 0
    with file_of(record).open() as file:
        file.seek(start)
        for line in file:
            if line == "retracted\n":
                retracted += 1
            else:
                one, other = line.split()
                wall.append(int(one) / 1e9)
                cpu.append(int(other) / 1e9)
    return Steps(wall, cpu, retracted)
