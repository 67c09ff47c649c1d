"""A device to measure on: a GPU, or the CPU in its place."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.cost.cases import VOCAB, median

__all__ = ["DTYPES", "Device", "Launched", "layouts"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: Few enough that the shortest forced sequence of ``benchmarks.devices.count`` outlasts them.
REPETITIONS = 20


class Launched(NamedTuple):
    """Work that a step gave the device.

    Attributes:
        kernels: Number of kernels; on a CPU, of operations.
        to_device: Copies from the host.
        to_host: Copies to the host.
        device_us: Microseconds that kernels and copies took.
        names: Number of each kernel.
    """

    kernels: int
    to_device: int = 0
    to_host: int = 0
    device_us: float = 0.0
    names: dict[str, int] = {}  # noqa: RUF012 - never changed


class Device:
    """The device that logits are on.

    Attributes:
        kind: ``"cuda"`` or ``"cpu"``.
        name: As torch names the GPU, or the architecture of the processor.
        on_gpu: Whether it is a GPU.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.on_gpu = kind == "cuda"
        self.name = torch.cuda.get_device_name() if self.on_gpu else platform.machine()

    def wait(self) -> None:
        """Wait until the device has done all work."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def clock(self) -> float:
        """Return the time in seconds when the device has done all work."""
        self.wait()
        return time.perf_counter()

    @contextmanager
    def no_waiting(self) -> Iterator[None]:
        """Raise if the host waits for the device."""
        if not self.on_gpu:
            yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def launched(self, step: Callable[[], object]) -> Launched:
        """Run a step and return its work on the device."""
        if not self.on_gpu:
            with _Operations() as operations:  # type: ignore[no-untyped-call]
                step()
            return Launched(operations.count)
        from torch.profiler import DeviceType, ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            step()
            self.wait()
        events = [one for one in profiler.events() if one.device_type == DeviceType.CUDA]
        copies = [one.name for one in events if one.name.startswith("Memcpy")]
        to_host = sum(name.startswith("Memcpy DtoH") for name in copies)
        kernels = Counter(one.name[:80] for one in events if not one.name.startswith("Memcpy"))
        spent = sum(one.time_range.elapsed_us() for one in events)
        return Launched(kernels.total(), len(copies) - to_host, to_host, spent, dict(kernels))

    def timed(
        self, step: Callable[[], object], before: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Return microseconds of a step until the host is free, and until the device is done.

        Args:
            step: The step.
            before: Runs before each step, outside of the time.
        """
        host, done = [], []
        for _ in range(REPETITIONS if self.on_gpu else 3):
            before()
            began = self.clock()
            step()
            host.append(time.perf_counter() - began)
            done.append(self.clock() - began)
        return {
            "host_us": round(median(host) * 1e6, 1),
            "done_us": round(median(done) * 1e6, 1),
        }


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that compute: neither views nor the making of a tensor."""

    count = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func.overloadpacket.__name__ in {"empty", "detach"}
        self.count += not (func.is_view or made)
        return func(*args, **(kwargs or {}))


def layouts(rows: int, dtype: torch.dtype, device: Device) -> Iterator[torch.Tensor]:
    """Yield random logits in several memory layouts."""
    logits = torch.randn(rows, VOCAB, device=device.kind).to(dtype)
    yield logits.clone()
    wider = torch.zeros(rows, VOCAB + 64, device=device.kind, dtype=dtype)
    wider[:, :VOCAB] = logits
    yield wider[:, :VOCAB]
    yield logits.t().contiguous().t()
