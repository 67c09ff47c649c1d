"""The cost on an accelerator: ``python -m benchmarks.gpu``, which needs torch and not SGLang.

It checks that every case leaves the logits that the plain reference leaves, bit for bit; that a
step never waits for the device; that an idle one launches nothing and any other at most three
kernels and one copy. Then it times them, in batches of 1 to 512. ``--device cpu`` does the same
with operations in the place of kernels, so that this file is tested where there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import reference
from benchmarks.cases import VOCAB, Batch, Case, cases, median, same_bits
from benchmarks.stored import store
from sglang_lp.server.pending import PendingResults
from sglang_lp.server.sampling import Steps, make_apply

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
QUICK_ROWS = (1, 8)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KERNELS = 3
COPIES = 1
#: Of what ``fill_`` reaches on the same rows.
BANDWIDTH = 0.8
REPETITIONS = 50


class Device:
    """Where it runs.

    Attributes:
        name: As torch calls the device, or the processor.
        on_gpu: Whether it is a GPU.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.on_gpu = kind == "cuda"
        self.name = torch.cuda.get_device_name() if self.on_gpu else platform.machine()

    def wait(self) -> None:
        """Wait until everything that was launched is done."""
        if self.on_gpu:
            torch.cuda.synchronize()

    @contextmanager
    def no_waiting(self) -> Iterator[None]:
        """Raise if something waits for the device."""
        if not self.on_gpu:
            yield
            return
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def launches(self, step: Callable[[], object]) -> tuple[int, int]:
        """Return how many kernels a step launches, and how many copies between host and device."""
        if not self.on_gpu:
            with _Operations() as operations:  # type: ignore[no-untyped-call]
                step()
            return operations.count, 0
        from torch.profiler import DeviceType, ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            step()
            self.wait()
        on_device = [
            event.name for event in profiler.events() if event.device_type == DeviceType.CUDA
        ]
        copies = sum(name.startswith("Memcpy") for name in on_device)
        return len(on_device) - copies, copies


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that compute: neither views nor the making of a tensor."""

    count = 0

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func.overloadpacket.__name__ in {"empty", "detach"}
        self.count += not (func.is_view or made)
        return func(*args, **(kwargs or {}))


def layouts(rows: int, dtype: torch.dtype, device: Device) -> Iterator[torch.Tensor]:
    """Yield random logits that lie in memory in different ways."""
    logits = torch.randn(rows, VOCAB, device=device.kind).to(dtype)
    yield logits.clone()
    wider = torch.zeros(rows, VOCAB + 64, device=device.kind, dtype=dtype)
    wider[:, :VOCAB] = logits
    yield wider[:, :VOCAB]
    yield logits.t().contiguous().t()


def check(case: Case, device: Device) -> None:
    """Compare with the reference, in every type and layout.

    Raises:
        RuntimeError: They differ.
    """
    batch = Batch(case)
    apply = make_apply(Steps(PendingResults()))
    for dtype in DTYPES:
        for logits in layouts(case.rows, dtype, device):
            expected = logits.clone()
            reference.edit(case.processor, expected, batch.info.custom_params)
            apply(logits, batch.info)
            if not same_bits(logits.contiguous(), expected.contiguous()):
                raise RuntimeError(f"{case.key}, {dtype}, strides {logits.stride()}: wrong logits")
            batch.decode()


def measure(case: Case, device: Device, stock: ModuleType | None) -> dict[str, Any]:
    """Count and time a case.

    Raises:
        RuntimeError: It waits for the device, or launches more than it may.
    """
    batch = Batch(case)
    logits = torch.randn(case.rows, VOCAB, device=device.kind)
    apply = partial(make_apply(Steps(PendingResults())), logits, batch.info)
    for _ in range(3):
        apply()
        batch.decode()
    kernels, copies = device.launches(apply)
    batch.decode()
    most = (0, 0) if "idle" in case.key else (KERNELS, COPIES)
    if kernels > most[0] or copies > most[1]:
        raise RuntimeError(f"{case.key}: {kernels} kernels and {copies} copies, at most {most}")
    with device.no_waiting():
        for _ in range(3):
            apply()
            batch.decode()
    measured = {
        "key": case.key,
        "rows": case.rows,
        "kernels": kernels,
        "copies": copies,
        "ours_us": _timed(apply, device, batch.decode),
        "fill_us": _timed(partial(logits.fill_, -torch.inf), device),
    }
    if stock is not None and case.stock_serves:
        processor = getattr(stock, case.processor)()
        call = partial(processor, logits, batch.info.custom_params)
        measured["stock_us"] = _timed(call, device)
    return measured


def _timed(
    step: Callable[[], object], device: Device, before: Callable[[], None] = lambda: None
) -> float:
    times = []
    for _ in range(REPETITIONS if device.on_gpu else 5):
        before()
        device.wait()
        started = time.perf_counter()
        step()
        device.wait()
        times.append(time.perf_counter() - started)
    return round(median(times) * 1e6, 1)


def load_stock(file: Path) -> ModuleType:
    """Load SGLang's processors from their file alone."""
    if importlib.util.find_spec("dill") is None:  # it pickles, which is not measured here
        sys.modules["dill"] = ModuleType("dill")
    spec = importlib.util.spec_from_file_location("stock_processors", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"--stock: expected a Python file, got {file}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def show(measured: Sequence[dict[str, Any]], device: Device) -> None:
    """Print the table."""
    print(f"{device.name}, torch {torch.__version__}; µs per step, until the device is done")
    row = "{:34}{:>6}{:>9}{:>8}{:>12}{:>12}{:>12}"
    print(row.format("case", "rows", "kernels", "copies", "fill_", "SGLang", "sglang-lp"))
    for case in measured:
        stock = case.get("stock_us", "-")
        numbers = (case["rows"], case["kernels"], case["copies"], case["fill_us"], stock)
        print(row.format(case["key"][:33], *numbers, case["ours_us"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, count, time and print; return 1 if forcing every row falls short of ``fill_``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="two small batches only")
    parser.add_argument("--stock", type=Path, help="SGLang's custom_logit_processor.py")
    parser.add_argument("--out", type=Path, help="file for the results, as JSON")
    given = parser.parse_args(arguments)
    device = Device(given.device)
    stock = None if given.stock is None else load_stock(given.stock)
    measured = []
    for rows in QUICK_ROWS if given.quick else ROWS:
        for case in cases(rows):
            check(case, device)
            measured.append(measure(case, device, stock))
    show(measured, device)
    if given.out is not None:
        described = {"device": device.name, "torch": torch.__version__, "cases": measured}
        store(described, given.out)
    slow = [
        case
        for case in measured
        if case["key"] == "thinking-forced-256" and case["fill_us"] < BANDWIDTH * case["ours_us"]
    ]
    if slow:
        print(f"forcing 256 rows takes more than fill_ / {BANDWIDTH}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
