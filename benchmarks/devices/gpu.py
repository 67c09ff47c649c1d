"""Checks and times of the toolkit on a GPU, without SGLang: ``python -m benchmarks.devices.gpu``.

Parts, the most important first; each has a share of the minutes, and takes what the parts before it
left:

- bits: logits equal those of plain loops in few shapes, and of a CPU for every kind of work;
- waits: steps that need not wait pass ``torch.cuda.set_sync_debug_mode("error")``;
- launches: kernels and copies by the profiler, next to the table of the fake GPU;
- times: until the host is free and until the device is done, at 1, 32 and 256 rows, three dtypes;
- drafts: verify steps;
- catalogues: rows that write the first tokens of an item;
- scale: the lines of ``docs/scale.md``.

Each record is one line of JSON, written when it is known (``build/gpu.jsonl``). A part that
reaches its deadline lists the units that it left out. The exit code is 1 if a unit failed.

``--device cpu`` runs every part on a CPU: waits and launches are those of the fake GPU.

Packages: torch, numpy, tokenizers and regex (transformers brings both), and hypothesis, msgspec,
orjson and sortedcontainers, whose wheels have 2 MB together; the toolkit runs from its checkout.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import torch

from benchmarks.devices import options
from benchmarks.devices.device import Device
from benchmarks.devices.parts import PARTS, Part

__all__ = ["OUT", "main", "records"]

OUT = Path("build/gpu.jsonl")


def records(device: Device, minutes: float) -> Iterator[dict[str, Any]]:
    """Run the parts and yield a record for each unit, and one for each part that was cut short.

    Args:
        device: What to measure.
        minutes: Time for all parts; a unit that has begun is finished.
    """
    deadline = time.monotonic()
    for part in PARTS:
        deadline += part.share * minutes * 60
        yield from _records(part, device, deadline)


def _records(part: Part, device: Device, deadline: float) -> Iterator[dict[str, Any]]:
    units = [*part.units(device)]
    for at, unit in enumerate(units):
        if time.monotonic() >= deadline:
            yield {"part": part.name, "not_reached": [one.name for one in units[at:]]}
            return
        record = {"part": part.name, "unit": unit.name}
        try:
            record |= unit.run()
        except Exception as error:  # noqa: BLE001 - the other units are run
            record["failed"] = f"{type(error).__name__}: {error}"
        yield record


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts, store and print the records; return 1 if a unit failed."""
    given = options.parse("gpu", __doc__, 5.0, OUT, arguments)
    device = Device(given.device)
    found: Counter[tuple[str, str]] = Counter()
    with given.out.open("wb", buffering=0) as file:
        head = {"device": device.name, "torch": torch.__version__, "minutes": given.minutes}
        file.write(orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE))
        for record in records(device, given.minutes):
            file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
            print(orjson.dumps(record).decode(), flush=True)
            found[record["part"], _outcome(record)] += len(record.get("not_reached", "-"))
    for (part, outcome), number in found.items():
        print(f"{part}: {number} {outcome}")
    return int(any(outcome == "failed" for _, outcome in found))


def _outcome(record: dict[str, Any]) -> str:
    for word in ("failed", "skipped", "not_reached"):
        if word in record:
            return word.replace("_", " ")
    return "differ from the fake GPU" if record.get("differs") else "done"


if __name__ == "__main__":
    sys.exit(main())
