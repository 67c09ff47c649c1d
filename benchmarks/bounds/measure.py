"""The most that a single accepted request costs the others: ``make bench PART=bounds``.

A request is admitted as in the HTTP process, made in the scheduler, and decoded, by the code that
does so on a server; only SGLang's own objects are fakes. Times are of the thread's processor, so
that other work on the machine does not count, and are also given as multiples of one ``fill_`` of
a row of logits. torch uses one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bounds import report
from benchmarks.bounds.cases import BATCH, LONGEST, Dear, dearest
from benchmarks.bounds.run import Run, Server, fill_seconds, floors
from benchmarks.machine import age, machine
from sglang_lp.errors import RequestError

#: Seconds for which one request is decoded at most.
SECONDS = 0.7
#: Arrays as large as the longest prompt that find room in its free memory: 32 MiB.
_GROWN = 32
#: Seconds for which dearer requests of one processor are searched for.
SEARCH_SECONDS = 5.0


def _resident() -> int:
    """Give free memory back, and return the bytes that the process still holds."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _grow() -> None:
    """Let the process hold free memory, as a server does that has run for a while."""
    del [np.ones(LONGEST) for _ in range(_GROWN)][:]


def measure(dear: Dear) -> dict[str, Any]:
    """Measure one request, or tell why it is refused."""
    found = {
        "key": dear.key,
        "rows": dear.copies,
        "texts": dear.copies if dear.texts else 1,
        "prompt": len(dear.prompt()),
    }
    _warm(dear.twin())
    run = Run(Server(), dear)
    # Prompts and parameters exist already, so only the memory of the rows is added.
    held = _resident()
    _grow()
    try:
        arrival = run.arrive()
    except RequestError as error:
        return {"key": dear.key, "refused": str(error)}
    steps = run.steps(dear.warm, dear.steps, SECONDS)
    joined, left = run.neighbours()
    held = _resident() - held
    if run.ended:
        raise RuntimeError(f"{dear.key} measures nothing: {run.ended}")
    return {
        **found,
        "admitted_ms": _milli(arrival.admitted),
        "received_ms": _milli(max(arrival.received, steps.read)),
        "first_ms": _milli(steps.first),
        "each_ms": _milli(statistics.median(steps.each)),
        "most_ms": _milli(max(steps.each)),
        "joined_ms": _milli(joined),
        "left_ms": _milli(left),
        "held_mib": round(max(held, 0) / 2**20, 1),
    }


def _warm(twin: Dear) -> None:
    """Run the code that a request runs: a server that has been up for a while has done so."""
    run = Run(Server(), twin)
    with contextlib.suppress(RequestError):
        run.arrive()
        run.steps(0, 3, SECONDS)
        run.neighbours()


def _milli(seconds: float) -> float:
    return round(seconds * 1000, 4)


def prepare() -> None:
    """Make this process like a server's that has been up for a while."""
    torch.set_num_threads(1)
    logging.disable()  # a refused request writes a line, which is not measured here
    # A request that ends imports it, and a server has long done so.
    importlib.import_module("sglang.srt.managers.schedule_batch")
    # What kind of logits the model has is known after the first long list.
    _warm(next(dear for dear in dearest() if dear.key == "allowed-65536-x1"))
    age()


def main() -> int:
    """Measure everything, search for dearer requests, store the results and renew the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bounds.measure", description=__doc__
    )
    parser.add_argument(
        "--only", default="", help="measure what has this in its key; store nothing"
    )
    only: str = parser.parse_args().only
    prepare()
    results: dict[str, Any] = {
        "machine": {**machine(), "torch_threads": 1},
        "fill_ms": _milli(fill_seconds()),
        "floors": {what: _milli(seconds) for what, seconds in floors(BATCH).items()},
        "cases": [],
    }
    chosen = [dear for dear in dearest() if only in dear.key]
    for dear in chosen:
        results["cases"].append(measure(dear))
        print(json.dumps(results["cases"][-1]), file=sys.stderr, flush=True)
        gc.collect()
    if only:
        return 0
    from benchmarks.bounds.search import search

    results["search"] = search(SEARCH_SECONDS)
    report.PART.store(results)
    return report.show(results)


if __name__ == "__main__":
    sys.exit(main())
