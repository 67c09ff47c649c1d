"""The cost of requests that arrive at once: ``python -m benchmarks.cost.arrivals``.

The scheduler's part of an arrival, without an engine: the gate, the reading of the prompt before a
batch is formed, and the first step. Figures are processor time of the thread.
``benchmarks.devices.engine`` measures arrivals on an engine, with and without the toolkit.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from time import thread_time
from typing import Any, NamedTuple

import torch

from benchmarks.bounds.cases import VOCAB
from benchmarks.bounds.run import Server, received
from benchmarks.cost.cases import median
from benchmarks.machine import age, machine
from benchmarks.pages import Part
from benchmarks.tables import table

__all__ = ["PART", "main"]

REQUESTS, ROUNDS = 256, 5
PROMPTS = (32, 2048)
_THINK = 151_667
_NGRAM = "DeepseekOCRNoRepeatNGramLogitProcessor"
#: Processor and parameters of each kind of request.
KINDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "budget, idle": (
        "ThinkingBudgetLogitProcessor",
        {
            "thinking_budget": 1_000_000,
            "thinking_start_token_id": _THINK,
            "thinking_end_token_id": _THINK + 1,
        },
    ),
    "bans": ("DisallowedTokensLogitsProcessor", {"token_ids": [*range(100)]}),
    "DRY": ("DRYLogitProcessor", {"dry_sequence_breaker_ids": [13, 25]}),
    "30-grams in 90 tokens": (_NGRAM, {"ngram_size": 30, "window_size": 90}),
    "3-grams in 32,768 tokens": (_NGRAM, {"ngram_size": 3, "window_size": 1 << 15}),
}


class _Times(NamedTuple):
    """Microseconds a request, and batches that the requests begin in.

    Attributes:
        gate: The gate of the scheduler, with the parameters and the row.
        reading: Before a batch is formed.
        step: The first step.
        batches: Batches in which the requests begin.
    """

    gate: float
    reading: float
    step: float
    batches: int


def _arrive(server: Server, kind: str, length: int, draw: random.Random) -> _Times:
    """Let requests with different prompts arrive, and run the first step of each."""
    processor, params = KINDS[kind]
    prompts = [
        [*(1000 + int(draw.paretovariate(0.6)) % 150_000 for _ in range(length - 1)), _THINK]
        for _ in range(REQUESTS)
    ]
    requests = [received(processor, params, prompt) for prompt in prompts]
    logits = torch.zeros(1, VOCAB).expand(REQUESTS, VOCAB).clone()
    began = thread_time()
    for request in requests:
        server.receive(request)
    gate, reading, step, batches, left = thread_time() - began, 0.0, 0.0, 0, REQUESTS
    while left:
        began = thread_time()
        begun = server.begin()
        read = thread_time()
        server.sample(logits[: len(begun)], [one.sampling_params.custom_params for one in begun])
        reading, step = reading + read - began, step + thread_time() - read
        batches, left = batches + 1, left - len(begun)
    if any(request.to_finish for request in requests):
        raise RuntimeError(f"{kind}: a request ended")
    micro = 1e6 / REQUESTS
    return _Times(gate * micro, reading * micro, step * micro, batches)


def measure() -> list[dict[str, Any]]:
    """Return the times of each kind of request and length of the prompt."""
    server, draw, found = Server(), random.Random(0), []
    for length in PROMPTS:
        for kind in KINDS:
            _arrive(server, kind, length, draw)
            age()
            times = [_arrive(server, kind, length, draw) for _ in range(ROUNDS)]
            gate, reading, step, batches = (median(column) for column in zip(*times, strict=True))
            found.append(
                {
                    "prompt": length,
                    "kind": kind,
                    "gate_us": round(gate, 1),
                    "reading_us": round(reading, 1),
                    "step_us": round(step, 1),
                    "batches": int(batches),
                }
            )
    return found


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}, one thread.",
        f"Microseconds a request of {REQUESTS} that arrive at once, the median of {ROUNDS} runs;",
        f"load average {on['load']}.",
        "",
    ]
    head = ["prompt", "requests carry", "gate", "prompt read", "first step", "batches"]
    rows = [
        [
            f"{one['prompt']:,} tokens",
            one["kind"],
            *(f"{one[name]:.0f} µs" for name in ("gate_us", "reading_us", "step_us")),
            str(one["batches"]),
        ]
        for one in results["cases"]
    ]
    return "\n".join([*lines, *table(head, rows)])


PART = Part("arrivals", "performance.md", page_block)


def main() -> int:
    """Measure, store and print."""
    torch.set_num_threads(1)
    on = machine()
    PART.store({"machine": on, "cases": measure()})
    print(page_block(PART.stored()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
