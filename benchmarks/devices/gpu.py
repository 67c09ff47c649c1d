"""The cost on an accelerator: ``python -m benchmarks.devices.gpu``. It needs no SGLang.

It checks that

- every case leaves the logits of the plain reference, bit for bit;
- a step never waits for the device;
- an idle step launches nothing, and any other step at most three kernels and one copy;
- an active verify step of speculative decoding launches at most one kernel more, which puts the
  drafts together, and copies them to the host once.

Then it times batches of 1 to 512 rows. ``--device cpu`` runs all of it with operations in place of
kernels, so that this file is tested without a GPU.
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

from benchmarks.cost import reference
from benchmarks.cost.cases import VOCAB, Batch, Case, cases, forced, idle, median, ngram, same_bits
from benchmarks.devices import scale
from benchmarks.drafts.verify_step import NODES, VerifyStep
from benchmarks.stored import store
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps
from sglang_lp.testing import FakeRequest

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
QUICK_ROWS = (1, 8)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
KERNELS = 3
COPIES = 1
#: More of them in a verify step: the drafts are put together, and copied to the host.
DRAFT_KERNELS = 1
DRAFT_COPIES = 1
#: With drafts the logits of a batch are as many times larger.
DRAFT_ROWS = (1, 8, 64)
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

    def launches(self, step: Callable[[], object]) -> tuple[int, int, int]:
        """Return how many kernels, copies to the device and copies to the host a step launches."""
        if not self.on_gpu:
            with _Operations() as operations:  # type: ignore[no-untyped-call]
                step()
            return operations.count, 0, 0
        from torch.profiler import DeviceType, ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            step()
            self.wait()
        on_device = [
            event.name for event in profiler.events() if event.device_type == DeviceType.CUDA
        ]
        copies = [name for name in on_device if name.startswith("Memcpy")]
        to_host = sum(name.startswith("Memcpy DtoH") for name in copies)
        return len(on_device) - len(copies), len(copies) - to_host, to_host


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
    apply = Steps(PendingResults()).run
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
    apply = partial(Steps(PendingResults()).run, logits, batch.info)
    for _ in range(3):
        apply()
        batch.decode()
    kernels, copies = _counted(case, device, apply, (KERNELS, COPIES, 0))[:2]
    batch.decode()
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


def check_drafts(case: Case, device: Device) -> None:
    """Compare verify steps with the reference, node by node.

    Raises:
        RuntimeError: They differ.
    """
    step = VerifyStep(case, device.kind)
    for _ in range(3):
        step.logits.normal_()
        expected = step.logits.clone()
        for row, history in enumerate(step.histories()):
            params = case.params(row // NODES)
            request = FakeRequest(case.opening, history)
            own = [request.custom_params(params)]
            reference.edit(case.processor, expected[row : row + 1], own)
        step.run()
        if not same_bits(step.logits, expected):
            raise RuntimeError(f"{case.key}, with drafts: wrong logits")
        step.commit()


def measure_drafts(case: Case, device: Device) -> dict[str, Any]:
    """Count and time verify steps of a case.

    Raises:
        RuntimeError: An idle one waits for the device, or any launches more than it may.
    """
    step = VerifyStep(case, device.kind)
    for _ in range(3):
        step.run()
        step.commit()
    most = (KERNELS + DRAFT_KERNELS, COPIES, DRAFT_COPIES)
    kernels, to_device, to_host = _counted(case, device, step.run, most)
    step.commit()
    waits = step.waits
    with device.no_waiting():
        step.run()
    waits = step.waits - waits
    if waits > (0 if _is_idle(case) else 1):
        raise RuntimeError(f"{case.key}, with drafts: it read pending results {waits} times")
    step.commit()
    return {
        "key": f"{case.key}-drafts",
        "rows": case.rows,
        "kernels": kernels,
        "copies": to_device + to_host,
        "to_host": to_host,
        "waits": waits,
        "ours_us": _timed(step.run, device, step.commit),
        "fill_us": _timed(partial(step.logits.fill_, -torch.inf), device),
    }


def _is_idle(case: Case) -> bool:
    return "idle" in case.key


def _counted(
    case: Case, device: Device, step: Callable[[], object], most: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Return the kernels and copies that a step launches.

    Raises:
        RuntimeError: More than it may, and anything at all if it is idle.
    """
    counted = device.launches(step)
    most = (0, 0, 0) if _is_idle(case) else most
    if any(one > limit for one, limit in zip(counted, most, strict=True)):
        raise RuntimeError(
            f"{case.key}: launched {counted}, at most {most} "
            "(kernels, copies to the device, copies to the host)"
        )
    return counted


def draft_cases(rows: int) -> list[Case]:
    """Return the cases that are also measured with drafts."""
    return [idle(rows, 1024), forced(rows), ngram(rows, 1024, 3, 90, "loop")]


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
    """Load SGLang's processors from their file, without the rest of SGLang."""
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="two small batches only")
    parser.add_argument("--stock", type=Path, help="SGLang's custom_logit_processor.py")
    parser.add_argument("--scale", action="store_true", help="the rows of docs/scale.md alone")
    parser.add_argument("--out", type=Path, help="file for the results, as JSON")
    given = parser.parse_args(arguments)
    device = Device(given.device)
    if given.scale:
        wanted = scale.PART.stored()
        for name, case in scale.cases(wanted["rows"]):
            print(scale.line(name, *scale.measure(case, device, wanted)))
        return 0
    stock = None if given.stock is None else load_stock(given.stock)
    measured = []
    for rows in QUICK_ROWS if given.quick else ROWS:
        for case in cases(rows):
            check(case, device)
            measured.append(measure(case, device, stock))
    for rows in QUICK_ROWS if given.quick else DRAFT_ROWS:
        for case in draft_cases(rows):
            check_drafts(case, device)
            measured.append(measure_drafts(case, device))
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
