"""What one accepted request costs all others at most: ``make bench-bounds``.

A request is admitted as in the HTTP process, made in the scheduler, and decoded, by the code that
does so on a server; only SGLang's own objects are fakes. Times are of the thread's processor, so
that other work on the machine does not count, and are also given as multiples of one ``fill_`` of
a row of logits. torch uses one thread.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import logging
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from benchmarks import bounds_report
from benchmarks.bounds_cases import VOCAB, Dear, dearest
from benchmarks.cost import machine
from sglang_lp._engine.rows import rows_of
from sglang_lp.errors import RequestError
from sglang_lp.server import sampling
from sglang_lp.server.guard import Guard
from sglang_lp.server.pending import PendingResults
from sglang_lp.server.sink import make_admit_req
from sglang_lp.testing import FakeRequest
from sglang_lp.trust import Policy

#: Seconds for which one request is decoded at most.
SECONDS = 3.0
#: Times that a neighbour comes and goes.
NEIGHBOURS = 3
#: Seconds for which dearer requests of one processor are searched for.
SEARCH_SECONDS = 20.0


class Server:
    """The two processes of a server with the default policy: all that knows the engine's inside."""

    def __init__(self) -> None:
        self._front, self._scheduler = Guard(Policy.default()), Guard(Policy.default())
        self._front.vocab_size = self._scheduler.vocab_size = VOCAB
        pending = PendingResults()
        self._admit_req = make_admit_req(self._scheduler, pending)
        self._apply = sampling.make_apply(sampling.Steps(pending))

    def admit(self, processor: str, params: Mapping[str, Any]) -> None:
        """Do what the HTTP process does for one text; raises ``RequestError`` to refuse it."""
        self._front.admit(processor, params)

    def receive(self, request: Any) -> None:
        """Do what the scheduler does when it makes a request."""
        self._admit_req(None, request)
        (row,) = rows_of([request.sampling_params.custom_params])
        if row is None:
            raise RuntimeError(f"{request.custom_logit_processor} was refused in the scheduler")

    def sample(self, logits: torch.Tensor, custom_params: Sequence[Any]) -> None:
        """Do what the sampler does at each step."""
        self._apply(logits, SimpleNamespace(custom_params=custom_params, grammars=None))


class _Req(FakeRequest):
    """A request as the scheduler makes it, out of a message from another process."""

    def __init__(self, processor: str, params: Mapping[str, Any], prompt: Sequence[int]) -> None:
        super().__init__(prompt, served=True)
        self.custom_logit_processor = processor
        own = pickle.loads(pickle.dumps(dict(params)))
        self.sampling_params = SimpleNamespace(custom_params=self.custom_params(own))
        self.vocab_size = VOCAB
        self.inflight_middle_chunks = 0
        self.disagg_kv_sender = None

    def set_finish_with_abort(self, message: str, status_code: int, err_type: str) -> None:
        raise RuntimeError(f"{err_type} {status_code}: {message}")


class Steps(NamedTuple):
    """Times of the steps of one request, in seconds."""

    first: float
    each: list[float]


class Run:
    """One request in all its copies, from its arrival on.

    Attributes:
        admitted: Seconds that the HTTP process took.
        received: Seconds that the scheduler took to make its rows.
    """

    def __init__(self, server: Server, dear: Dear) -> None:
        self._server = server
        prompt = dear.prompt()
        self.requests = [_Req(dear.processor, dear.params, prompt) for _ in range(dear.copies)]
        self._coming: Iterator[int] = cycle(dear.output())
        self._params = [request.sampling_params.custom_params for request in self.requests]
        # A plain neighbour before and one after them.
        self._logits = torch.empty(dear.copies + 2, VOCAB).fill_(0.0)  # its pages are there
        texts = dear.copies if dear.texts else 1
        started = time.thread_time()
        for _ in range(texts):
            server.admit(dear.processor, dear.params)
        self.admitted = time.thread_time() - started
        started = time.thread_time()
        for request in self.requests:
            server.receive(request)
        self.received = time.thread_time() - started

    def step(self, before: int = 0, after: int = 0) -> float:
        """Return the seconds of a step, beside so many plain neighbours."""
        custom_params = [*[None] * before, *self._params, *[None] * after]
        logits = self._logits[: len(custom_params)]
        return _spent(lambda: self._server.sample(logits, custom_params))

    def decode(self) -> None:
        """Let every copy generate a token."""
        token_id = next(self._coming)
        for request in self.requests:
            request.append(token_id)

    def steps(self, warm: int, count: int, seconds: float) -> Steps:
        """Decode, and return the times of the steps after ``warm`` tokens.

        A request that ends with an error is no longer looked at: see :attr:`ended`.
        """
        first = self.step()
        for _ in range(warm):
            self.decode()
        if warm:
            self.step()  # takes them in at once
        until = time.monotonic() + seconds
        each: list[float] = []
        while len(each) < count and (time.monotonic() < until or len(each) < 3):
            self.decode()
            each.append(self.step())
        return Steps(first, each)

    @property
    def ended(self) -> str | None:
        """The error that ended a copy, if any."""
        errors = (getattr(request.to_finish, "message", None) for request in self.requests)
        return next((error for error in errors if error), None)

    def neighbours(self) -> tuple[float, float]:
        """Return the median times of the steps that a neighbour joins, and leaves."""
        joins, leaves = [], []
        for _ in range(NEIGHBOURS):
            for before, after in ((0, 1), (1, 0)):  # leaving, the second one moves all rows
                self.decode()
                joins.append(self.step(before, after))
                self.decode()
                self.step(before, after)
                self.decode()
                leaves.append(self.step())
        return statistics.median(joins), statistics.median(leaves)


def _spent(function: Callable[[], object]) -> float:
    started = time.thread_time()
    function()
    return time.thread_time() - started


def _resident() -> int:
    """Return the bytes of memory that the process holds, what is free of it given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fill_seconds() -> float:
    """Return what one ``fill_`` of a row takes."""
    row = torch.zeros(1, VOCAB)
    return statistics.median(_spent(lambda: row.fill_(1.0)) for _ in range(500))


def measure(dear: Dear) -> dict[str, Any]:
    """Measure one request, or tell why it is refused."""
    found = {
        "key": dear.key,
        "processor": dear.processor,
        "rows": dear.copies,
        "texts": dear.copies if dear.texts else 1,
        "prompt": len(dear.prompt()),
    }
    try:
        run = Run(Server(), dear)
    except RequestError as error:
        return {**found, "refused": str(error)}
    held = _resident()
    steps = run.steps(dear.warm, dear.steps, SECONDS)
    joined, left = run.neighbours()
    # The rows' share only: prompts and parameters as SGLang keeps them were there before.
    held = _resident() - held
    if run.ended:
        raise RuntimeError(f"{dear.key} measures nothing: {run.ended}")
    return {
        **found,
        "admitted_ms": _milli(run.admitted),
        "received_ms": _milli(run.received),
        "first_ms": _milli(steps.first),
        "each_ms": _milli(statistics.median(steps.each)),
        "most_ms": _milli(max(steps.each)),
        "steps": len(steps.each),
        "joined_ms": _milli(joined),
        "left_ms": _milli(left),
        "held_mib": round(max(held, 0) / 2**20, 1),
    }


def _milli(seconds: float) -> float:
    return round(seconds * 1000, 4)


def prepare() -> None:
    """Make this process like a server's that has been up for a while."""
    torch.set_num_threads(1)
    logging.disable()  # a refused request writes a line, which is not measured here
    # A request that ends imports it, and a server has long done so.
    importlib.import_module("sglang.srt.managers.schedule_batch")
    gc.collect()
    gc.freeze()


def main() -> int:
    """Measure everything, search for dearer requests, store the results and renew the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds", description=__doc__)
    parser.add_argument(
        "--only", default="", help="measure what has this in its key; store nothing"
    )
    only: str = parser.parse_args().only
    prepare()
    results: dict[str, Any] = {
        "machine": {**machine(), "torch_threads": 1},
        "fill_ms": _milli(fill_seconds()),
        "cases": [],
    }
    chosen = [dear for dear in dearest() if only in dear.key]
    for dear in chosen:
        results["cases"].append(measure(dear))
        print(json.dumps(results["cases"][-1]), file=sys.stderr, flush=True)
        gc.collect()
    if only:
        return 0
    from benchmarks.bounds_search import search

    results["search"] = search(SEARCH_SECONDS)
    bounds_report.store(results)
    return bounds_report.show(results)


if __name__ == "__main__":
    sys.exit(main())
