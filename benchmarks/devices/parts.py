"""Parts of ``benchmarks.devices.gpu``: each yields named units that check or measure one thing.

A unit returns its record, and raises ``RuntimeError`` where the device does not do what it should.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import torch

from benchmarks.catalogue import measure as catalogue
from benchmarks.catalogue.items import LEVELS, codes_of, sets_of
from benchmarks.cost import reference
from benchmarks.cost.cases import VOCAB, Batch, Case, cases, forced, idle, ngram, same_bits
from benchmarks.devices import scale
from benchmarks.devices.count import KINDS, NODES, Kind, Playing, count
from benchmarks.devices.device import DTYPES, Device, layouts
from benchmarks.drafts.verify_step import VerifyStep
from sglang_lp.catalogue.build import build
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps
from sglang_lp.testing import FakeRequest
from support.catalogues import knowing

__all__ = ["PARTS", "Part", "Unit", "check", "check_drafts", "measure_drafts"]

#: The plain reference is Python: few shapes.
REFERENCE_ROWS = (1, 8)
ROWS = {"cuda": (1, 32, 256), "cpu": (1, 2)}
#: Requests whose work is counted.
COUNTED_ROWS = 32
#: Most operations of an active verify step, and most copies to the device and to the host.
DRAFT_LIMITS = (4, 1, 1)
ITEMS = 100_000
#: Rows of docs/scale.md; fewer on a CPU.
SCALE_ROWS = {"cuda": scale.PART.stored()["rows"], "cpu": 2}


class Unit(NamedTuple):
    """One thing to check or to measure.

    Attributes:
        name: For its record.
        run: Returns the record.
    """

    name: str
    run: Callable[[], dict[str, Any]]


class Part(NamedTuple):
    """Units on one question.

    Attributes:
        name: For the records.
        share: Of the minutes.
        units: Yields the units, the most important first.
    """

    name: str
    share: float
    units: Callable[[Device], Iterator[Unit]]


def _bits(device: Device) -> Iterator[Unit]:
    """Logits equal the plain reference, and those of a CPU, bit for bit."""
    for rows in REFERENCE_ROWS:
        for case in cases(rows):
            yield Unit(case.key, partial(check, case, device))
        for case in _draft_cases(rows):
            yield Unit(f"{case.key}, drafts", partial(check_drafts, case, device))
    if not device.on_gpu:
        reason = "every kind of work on a GPU is compared with the same work on a CPU"
        yield Unit("kinds", partial(dict, skipped=reason))
        return
    for kind in KINDS:
        yield Unit(kind.name, partial(_same_as_cpu, kind, 1, device))
        if not kind.is_dense:
            yield Unit(f"{kind.name}, drafts", partial(_same_as_cpu, kind, NODES, device))


def check(case: Case, device: Device) -> dict[str, Any]:
    """Compare a case with the reference on host copies, in every dtype and layout.

    Raises:
        RuntimeError: They differ.
    """
    batch = Batch(case)
    apply = Steps(PendingResults()).run
    for dtype in DTYPES:
        for logits in layouts(case.rows, dtype, device):
            expected = logits.to("cpu", copy=True).contiguous()
            reference.edit(case.processor, expected, batch.info.custom_params)
            apply(logits, batch.info)
            if not same_bits(logits.cpu().contiguous(), expected):
                raise RuntimeError(f"{dtype}, strides {logits.stride()}: other logits")
            batch.decode()
    return {"equal": "the reference"}


def check_drafts(case: Case, device: Device) -> dict[str, Any]:
    """Compare verify steps with the reference on host copies, node by node.

    Raises:
        RuntimeError: They differ.
    """
    step = VerifyStep(case, device.kind)
    for _ in range(3):
        step.logits.normal_()
        expected = step.logits.to("cpu", copy=True)
        for row, history in enumerate(step.histories()):
            params = case.params(row // NODES)
            request = FakeRequest(case.opening, history)
            own = [request.custom_params(params)]
            reference.edit(case.processor, expected[row : row + 1], own)
        step.run()
        if not same_bits(step.logits.cpu(), expected):
            raise RuntimeError("with drafts: other logits")
        step.commit()
    return {"equal": "the reference"}


def _same_as_cpu(kind: Kind, width: int, device: Device) -> dict[str, Any]:
    """Compare steps of a kind of work on the device with the same steps on the CPU."""
    rows = 4
    there, here = (Playing([kind], rows, name, width=width) for name in (device.kind, "cpu"))
    for dtype in DTYPES:
        expected = torch.randn(rows * width, VOCAB).to(dtype)
        logits = expected.to(device.kind)
        there.step(logits)
        here.step(expected)
        if not same_bits(logits.cpu(), expected):
            raise RuntimeError(f"{dtype}: other logits than on a CPU")
        there.commit()
        here.commit()
    return {"equal": "a CPU", "ended": there.ended}


def _waits(device: Device) -> Iterator[Unit]:
    """Steps that need not wait do not wait."""
    for kind in KINDS:
        if not kind.waits:
            yield Unit(kind.name, partial(_does_not_wait, kind, device))


def _does_not_wait(kind: Kind, device: Device) -> dict[str, Any]:
    if not device.on_gpu:
        waits = count([kind], COUNTED_ROWS).waits
        if waits:
            raise RuntimeError(f"waits {waits} times on the fake GPU")
        return {"waits": 0, "on": "the fake GPU"}
    playing = Playing([kind], COUNTED_ROWS, device.kind)
    logits = torch.randn(COUNTED_ROWS, VOCAB, device=device.kind)
    playing.step(logits)  # copies what holds at every step
    playing.commit()
    with device.no_waiting():
        for _ in range(3):
            playing.step(logits)
            playing.commit()
    return {"waits": 0, "on": device.name}


def _launches(device: Device) -> Iterator[Unit]:
    """Kernels and copies of a step, next to the table of the fake GPU."""
    for kind in KINDS:
        yield Unit(kind.name, partial(_launched, kind, device))


def _launched(kind: Kind, device: Device) -> dict[str, Any]:
    fake = count([kind], COUNTED_ROWS)
    record: dict[str, Any] = {
        "fake": {
            "kernels": fake.kernels,
            "to_device": fake.to_device,
            "to_host": fake.to_host,
        }
    }
    if not device.on_gpu:
        return record | {"skipped": "a CPU launches no kernels"}
    playing = Playing([kind], COUNTED_ROWS, device.kind)
    logits = torch.randn(COUNTED_ROWS, VOCAB, device=device.kind)
    for _ in range(3):
        playing.step(logits)
        playing.commit()
    real = device.launched(partial(playing.step, logits))
    differs = real[:3] != (fake.kernels, fake.to_device, fake.to_host)
    return record | {"real": real._asdict(), "differs": differs}


def _times(device: Device) -> Iterator[Unit]:
    """The host's time and the device's, for each number of rows and dtype."""
    for rows in ROWS[device.kind]:
        for kind in KINDS:
            yield Unit(f"{kind.name}, {rows} rows", partial(_timed, kind, rows, device))


def _timed(kind: Kind, rows: int, device: Device) -> dict[str, Any]:
    playing = Playing([kind], rows, device.kind)
    record: dict[str, Any] = {"rows": rows}
    for dtype in DTYPES:
        logits = torch.randn(rows, VOCAB, device=device.kind).to(dtype)
        playing.step(logits)
        step = partial(playing.step, logits)
        fill = device.timed(partial(logits.fill_, -math.inf))["done_us"]
        logits.normal_()
        timed = device.timed(step, playing.commit)
        record[str(dtype).removeprefix("torch.")] = timed | {"fill_us": fill}
    if playing.ended:
        raise RuntimeError(f"{playing.ended} requests ended with an error")
    return record


def _drafts(device: Device) -> Iterator[Unit]:
    """Verify steps: kernels, copies, reads of pending results, times."""
    for rows in ROWS[device.kind]:
        for case in _draft_cases(rows):
            yield Unit(case.key, partial(measure_drafts, case, device))


def _draft_cases(rows: int) -> list[Case]:
    return [idle(rows, 1024), forced(rows), ngram(rows, 1024, 3, 90, "loop")]


def measure_drafts(case: Case, device: Device) -> dict[str, Any]:
    """Count and time verify steps of a case.

    Raises:
        RuntimeError: An idle step waits for the device or launches something, or another step
            launches more than ``DRAFT_LIMITS`` or reads pending results twice.
    """
    is_idle = "idle" in case.key
    step = VerifyStep(case, device.kind)
    for _ in range(3):
        step.run()
        step.commit()
    real = device.launched(step.run)
    limits = (0, 0, 0) if is_idle else DRAFT_LIMITS
    if any(one > limit for one, limit in zip(real[:3], limits, strict=True)):
        raise RuntimeError(f"launched {real}, at most {limits}")
    step.commit()
    waits = step.waits
    with device.no_waiting():
        step.run()
    waits = step.waits - waits
    if waits > (0 if is_idle else 1):
        raise RuntimeError(f"read pending results {waits} times")
    step.commit()
    timed = device.timed(step.run, step.commit)
    return {"rows": case.rows, "real": real._asdict(), "waits": waits, **timed}


def _catalogues(device: Device) -> Iterator[Unit]:
    """Rows that write the first tokens of an item of a catalogue."""
    for rows in ROWS[device.kind]:
        for rule in ("none", "a set"):
            yield Unit(f"{rule}, {rows} rows", partial(_written, rule, rows, device))


@cache
def _items() -> Any:
    return knowing(items=build(codes_of(ITEMS), sets=sets_of(ITEMS)))


def _written(rule: str, rows: int, device: Device) -> dict[str, Any]:
    logits = torch.zeros(rows, VOCAB, device=device.kind)
    record: dict[str, Any] = {"rows": rows, "items": ITEMS}
    for name, clock in (("host_us", time.perf_counter), ("done_us", device.clock)):
        times: dict[int, list[float]] = {}
        for at in range(3):
            # The last token ends the request, which takes SGLang.
            tokens = catalogue.steps(_items(), logits, rule, at, clock)
            for depth, seconds in islice(tokens, LEVELS - 1):
                times.setdefault(depth, []).append(seconds)
        record[name] = [round(statistics.median(found) * 1e6, 1) for found in times.values()]
    return record


def _scale(device: Device) -> Iterator[Unit]:
    """The lines of docs/scale.md."""
    for name, case in scale.cases(SCALE_ROWS[device.kind]):
        yield Unit(name, partial(_line, name, case, device))


def _line(name: str, case: Case, device: Device) -> dict[str, Any]:
    host, done = scale.measure(case, device, scale.PART.stored())
    line = scale.line(name, host, done)
    return {"rows": case.rows, "host_ms": host, "done_ms": done, "line": line}


#: The most important first. Later parts also have the time that a part leaves.
PARTS = (
    Part("bits", 0.25, _bits),
    Part("waits", 0.1, _waits),
    Part("launches", 0.15, _launches),
    Part("times", 0.25, _times),
    Part("drafts", 0.1, _drafts),
    Part("catalogues", 0.05, _catalogues),
    Part("scale", 0.1, _scale),
)
