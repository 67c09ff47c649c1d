"""Time that an adapted class of another engine adds to a step: ``make bench PART=adapters``.

Three ways lead to the same logits of 64 rows: the class called by hand on a batch that it knows;
the class in its adapter, as the scheduler runs it; and a native processor that overrides
``__call__``. With few logits in a row the time is the toolkit's own. With a large vocabulary most
of it is copying rows in memory, as for every processor that computes on whole rows.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from benchmarks.cost.cases import VOCAB, interleave
from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.adapters import EngineSettings, adapt, load
from sglang_lp.processor import LogitProcessor
from sglang_lp.testing import Played

ROWS = 64
STEPS = 30
ROUNDS = 9
#: Logits in a row, where copying them takes no time to speak of.
SMALL = 64
#: Microseconds that an adapter may add to a native processor that does the same, for all rows,
#: where the interface takes the whole batch at once.
LIMIT = 100.0
BATCHED = ("vllm-v1", "vllm-v2")
BANNED = 5


class Native(LogitProcessor):
    """Bans a token by SGLang's contract."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:  # noqa: ARG002
        """Ban it in all rows."""
        logits[:, BANNED] = float("-inf")
        return logits


class NativeRows(LogitProcessor):
    """Bans a token row by row."""

    def __call__(self, logits: torch.Tensor, custom_param_list: Any = None) -> torch.Tensor:  # noqa: ARG002
        """Ban it in each row."""
        for row in logits:
            row[BANNED] = float("-inf")
        return logits


class Rows:
    """Bans a token, one request at a time, as a Transformers processor."""

    def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Ban it."""
        scores[:, BANNED] = float("-inf")
        return scores


class Way(NamedTuple):
    """One way to a step.

    Attributes:
        step: Runs it.
        before: What comes between steps and is not counted.
    """

    step: Callable[[], object]
    before: Callable[[], None] = lambda: None


def _fastest(way: Way) -> float:
    """Return the least processor time of a step in seconds: of what else runs here, nothing."""
    best = math.inf
    for _ in range(STEPS):
        way.before()
        start = time.thread_time()
        way.step()
        best = min(best, time.thread_time() - start)
    return best


def _batch(processor: Any, vocab_size: int) -> Way:
    """Return the steps of a batch that generates."""
    played = [Played(processor, {}, [7, 8, 9], vocab_size=vocab_size) for _ in range(ROWS)]
    custom_params = [one.custom_params for one in played]
    batch, logits = Batch(), torch.randn(ROWS, vocab_size)

    def generate() -> None:
        for one in played:
            one.source.append(6)
        logits.fill_(0.5)

    return Way(lambda: batch.step(logits, rows_of(custom_params), custom_params), generate)


def _own_v1(adapted: Any, engine: EngineSettings) -> Way:
    processor, logits = adapted.make_v1_object(engine), torch.randn(ROWS, engine.vocab_size)

    def step() -> None:
        processor.update_state(None)
        processor.apply(logits)

    return Way(step)


def _own_v2(adapted: Any, engine: EngineSettings) -> Way:
    processor, logits = adapted.foreign(None, None), torch.randn(ROWS, engine.vocab_size)

    def step() -> None:
        processor.apply_staged_writes()
        processor.apply(logits, None)

    return Way(step)


def _own_rows(_adapted: Any, engine: EngineSettings) -> Way:
    processor, ids = Rows(), torch.zeros(1, 8, dtype=torch.long)
    logits = torch.randn(ROWS, engine.vocab_size)

    def step() -> None:
        for row in range(ROWS):
            processor(ids, logits[row : row + 1])

    return Way(step)


CASES: Mapping[str, tuple[Callable[[Any, EngineSettings], Way], Any, Any]] = {
    "vllm-v1": (_own_v1, "BansV1", Native),
    "vllm-v2": (_own_v2, "BansV2", Native),
    "transformers": (_own_rows, Rows, NativeRows),
}


def measure(interface: str, vocab_size: int) -> dict[str, Any]:
    """Return the times of a step in microseconds, each way."""
    own, foreign, native = CASES[interface]
    if isinstance(foreign, str):
        foreign = load("benchmarks.adapters.foreign", foreign, "benchmarks")
    adapted = adapt(foreign, interface)
    engine = EngineSettings(vocab_size=vocab_size, max_requests=ROWS, max_length=1 << 14)
    adapted.begin(engine)
    ways = {
        "own": own(adapted, engine),
        "adapted": _batch(adapted, vocab_size),
        "native": _batch(native, vocab_size),
    }
    times = interleave({name: partial(_fastest, way) for name, way in ways.items()}, ROUNDS)
    us = {name: round(min(each) * 1e6, 1) for name, each in times.items()}
    return {"interface": interface, "vocab": vocab_size, **us}


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']} (1 thread).",
        f"Microseconds of processor time for a step of {results['rows']} rows.",
        "",
    ]
    head = ("interface", "logits in a row", "class by hand", "adapted", "native", "beyond native")
    rows = (
        (
            *(f"`{case['interface']}`", f"{case['vocab']:,}", f"{case['own']:,.0f}"),
            *(f"{case['adapted']:,.0f}", f"{case['native']:,.0f}", f"{_beyond(case):,.0f}"),
        )
        for case in results["cases"]
    )
    return "\n".join([*lines, *table(head, rows)])


PART = Part("adapters", "bring-your-own.md", page_block)


def _beyond(case: Mapping[str, Any]) -> float:
    """Return the microseconds that the adapter adds to a native processor with the same effect."""
    return float(case["adapted"]) - float(case["native"])


def main() -> int:
    """Measure, store and print what each interface costs, and renew the page."""
    torch.set_num_threads(1)
    cases = [measure(one, vocab_size) for one in CASES for vocab_size in (SMALL, VOCAB)]
    results = {"machine": machine(), "rows": ROWS, "cases": cases}
    PART.store(results)
    print(page_block(results))
    missed = [
        case["interface"]
        for case in cases
        if case["interface"] in BATCHED and case["vocab"] == SMALL and _beyond(case) > LIMIT
    ]
    print(f"over {LIMIT:g} µs: {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
