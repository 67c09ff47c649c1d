"""The cost of rows that run by forms, and of the same rows asked one by one.

``python -m benchmarks.cost.forms``. Both sides take turns in one process. Operations on the logits
are left out: the figure is the host's time, as processor time of the thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from time import thread_time
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.cost.cases import VOCAB, Batch, Case, interleave, median, ngram, others, per_step
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
#: Processors with a form, and their names on the page.
NAMES = {
    "BadWordsLogitProcessor": "bad words, as tokens",
    "DRYLogitProcessor": "DRY",
    "ForcedSequenceLogitProcessor": "forced sequence",
    "ScheduledBiasLogitProcessor": "scheduled bias",
}


def cases(rows: int) -> dict[str, Case]:
    """Return the batches to measure, by the name on the page."""
    found = {NAMES[one.processor]: one for one in others(rows, HISTORY) if one.processor in NAMES}
    found["length of the answer"] = Case(
        "length", "GenLengthLogitProcessor", _length, rows, HISTORY
    )
    found["2-grams in 90 tokens"] = ngram(rows, HISTORY, 2, 90, "prose")
    found["3-grams in 32,768 tokens"] = ngram(rows, HISTORY, 3, 1 << 15, "prose")
    found["chain of bans, DRY and 2-grams"] = Case(
        "chain", "ChainLogitProcessor", _chain, rows, HISTORY
    )
    return found


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


def _side(case: Case, forms: Forms | None) -> Callable[[], float]:
    """Return a function that runs steps of a batch and returns the seconds of one."""
    batch, served = Batch(case), Served(forms=forms)
    logits = torch.zeros(1, VOCAB).expand(case.rows, VOCAB)
    given = batch.info.custom_params

    def step() -> None:
        served.step(logits, rows_of(given), given)

    for _ in range(2):  # the first step reads the prompt, the second runs by forms
        step()
        batch.decode()
    if forms is not None and forms.are_empty and case.rows > 1:
        raise RuntimeError(f"{case.key}: no row runs by a form")
    return partial(per_step, step, STEPS, batch.decode, thread_time)


def measure() -> list[dict[str, Any]]:
    """Return the microseconds of a step of both sides, for each number of rows."""
    found = []
    with patch.object(Plan, "apply", lambda *_given: None):
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
    return "\n".join([*lines, *table(head, shown)])


PART = Part("forms", "performance.md", page_block)


def main() -> int:
    """Measure, store the results, renew the page and print its table."""
    torch.set_num_threads(1)
    found = measure()
    PART.store({"machine": machine(), "cases": found})
    print(PART.block(PART.stored()))
    return int(any(one[f"forms_{ROWS[-1]}"] >= one[f"rows_{ROWS[-1]}"] for one in found))


if __name__ == "__main__":
    sys.exit(main())
