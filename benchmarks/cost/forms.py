"""The cost of rows that run by forms, and of the same rows asked one by one.

``python -m benchmarks.cost.forms``. Both sides take turns in one process. Operations on the logits
are left out: the figure is the host's time, as processor time of the thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any
from unittest.mock import patch

import orjson
import torch

from benchmarks.cost.cases import (
    NEWLINE,
    THINK,
    VOCAB,
    Batch,
    Case,
    interleave,
    median,
    ngram,
    others,
    per_step,
)
from benchmarks.machine import age, machine
from benchmarks.pages import Part
from benchmarks.tables import table
from sglang_lp._engine.apply.plan import Plan
from sglang_lp._engine.batch import Batch as Served
from sglang_lp._engine.forms.forms import Forms
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.builtins.known_forms import FORMS

__all__ = ["PART", "main"]

ROWS, HISTORY = (1, 32, 256), 1024
ROUNDS, STEPS = 5, 20
#: The batch that has all kinds.
MIXED = "ten kinds mixed"
#: Processors with a form, and their names on the page.
NAMES = {
    "BadWordsLogitProcessor": "bad words, as tokens",
    "DRYLogitProcessor": "DRY",
    "ForcedWordsLogitProcessor": "forced words, as tokens",
    "LoopBreakerLogitProcessor": "loop breaker",
    "ScheduledBiasLogitProcessor": "scheduled bias",
}


def cases(rows: int) -> dict[str, Sequence[Case]]:
    """Return the batches to measure, by the name on the page: each has the rows of some cases."""
    found = _kinds(rows)
    chain = Case("chain", "ChainLogitProcessor", _chain, rows, HISTORY)
    counts = [len(range(place, rows, len(found))) for place in range(len(found))]
    mixed = zip(found.values(), counts, strict=True)
    return {
        **{name: [one] for name, one in found.items()},
        "chain of bans, DRY and 2-grams": [chain],
        MIXED: [replace(one, rows=count) for one, count in mixed if count],
    }


def _kinds(rows: int) -> dict[str, Case]:
    found = {NAMES[one.processor]: one for one in others(rows, HISTORY) if one.processor in NAMES}
    found["forced sequence"] = Case(
        "sequence", "ForcedSequenceLogitProcessor", _sequence, rows, HISTORY
    )
    found["length of the answer"] = Case(
        "length", "GenLengthLogitProcessor", _length, rows, HISTORY
    )
    found["2-grams in 90 tokens"] = ngram(rows, HISTORY, 2, 90, "prose")
    found["3-grams in 32,768 tokens"] = ngram(rows, HISTORY, 3, 1 << 15, "prose")
    found["budget with end tokens"] = Case(
        "budget", "ThinkingBudgetLogitProcessor", _budget, rows, HISTORY
    )
    return found


def _sequence(_row: int) -> Mapping[str, Any]:
    return {"token_ids": [5] * (2 * HISTORY)}


def _budget(_row: int) -> Mapping[str, Any]:
    return {
        "thinking_budget": 1_000_000,
        "thinking_start_token_id": THINK,
        "thinking_end_token_id": THINK + 1,
        "eos_token_ids": [NEWLINE],
    }


def _length(_row: int) -> Mapping[str, Any]:
    return {"bias": 0.01, "eos_token_ids": [5]}


def _chain(_row: int) -> Mapping[str, Any]:
    return {
        "chain": [
            "DisallowedTokensLogitsProcessor",
            "DRYLogitProcessor",
            "DeepseekOCRNoRepeatNGramLogitProcessor",
        ],
        "0.token_ids": [*range(100)],
        "2.ngram_size": 2,
        "2.window_size": 90,
    }


def _side(cases_: Sequence[Case], forms: Forms | None) -> Callable[[], float]:
    """Return a function that runs steps of a batch and returns the seconds of one."""
    batches, served = [*map(Batch, cases_)], Served(forms=forms)
    given = [params for batch in batches for params in batch.info.custom_params]
    logits = torch.zeros(1, VOCAB).expand(len(given), VOCAB)

    def step() -> None:
        served.step(logits, rows_of(given), given)

    def decode() -> None:
        for batch in batches:
            batch.decode()

    for _ in range(2):  # the first step reads the prompt, the second runs by forms
        step()
        decode()
    if forms is not None and forms.are_empty and len(given) > ROWS[0]:
        raise RuntimeError(f"{cases_[0].key}: no row runs by a form")
    return partial(per_step, step, STEPS, decode, thread_time)


#: Prints the seconds and the MiB that a start takes for forms.
_START = """
import pathlib, time
import sglang_lp.builtins.thinking.families, torch
def used(): return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
before, began = used(), time.thread_time()
import sglang_lp.builtins.known_forms
print([time.thread_time() - began, used() - before])
"""


def measure_start() -> dict[str, Any]:
    """Return the seconds and MiB of a start with an empty cache, and with that of the first."""
    found: dict[str, Any] = {}
    with TemporaryDirectory() as directory:
        for name in ("first", "later"):
            done = subprocess.run(
                [sys.executable, "-c", _START],
                env={**os.environ, "NUMBA_CACHE_DIR": directory},
                capture_output=True,
                check=True,
            )
            seconds, size = orjson.loads(done.stdout)
            found |= {f"{name}_s": round(seconds, 2), f"{name}_mib": round(size)}
    return found


def measure() -> list[dict[str, Any]]:
    """Return the microseconds of a step of both sides, for each number of rows."""
    found = []
    with patch.multiple(Plan, apply=lambda *_given: None, decide=lambda *_given: None):
        for name in cases(1):
            one: dict[str, Any] = {"name": name}
            for rows in ROWS:
                case = cases(rows)[name]
                sides = {"rows": _side(case, None), "forms": _side(case, Forms(FORMS))}
                age()
                times = interleave(sides, ROUNDS)
                for side, own in times.items():
                    one[f"{side}_{rows}"] = round(median(own) * 1e6, 1)
            found.append(one)
    return found


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}, one thread.",
        f"Processor time of a step, the median of {ROUNDS} runs; load average {on['load']}.",
        "",
    ]
    shown = (
        (
            case["name"],
            *(f"{case[f'rows_{rows}']:,.0f}, {case[f'forms_{rows}']:,.0f} µs" for rows in ROWS),
        )
        for case in results["cases"]
    )
    head = ("asked row by row, by forms", *(f"{rows} rows" for rows in ROWS))
    start = results["start"]
    lines += [*table(head, shown), ""]
    first, later = (
        f"{start[f'{one}_s']:.1f} s and {start[f'{one}_mib']} MiB" for one in ("first", "later")
    )
    lines.append(f"The start of a rank takes {later} more; {first} if numba has no cache yet.")
    return "\n".join(lines)


PART = Part("forms", "performance.md", page_block)


def main() -> int:
    """Measure, store the results, renew the page and print its table."""
    torch.set_num_threads(1)
    found = measure()
    PART.store({"machine": machine(), "start": measure_start(), "cases": found})
    print(PART.block(PART.stored()))
    return int(any(one[f"forms_{ROWS[-1]}"] >= one[f"rows_{ROWS[-1]}"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
