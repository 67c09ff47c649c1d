"""Time of the toolkit's code in a verify step, with busy processors and an idle budget.

``make bench PART=drafts`` calls the hooks as SGLang calls them: before the verify forward, and in
``eagle_sample``, in place of the grammar's mask. The few operations on the logits are left out,
because a GPU runs them while the host goes on. Times are processor times of the thread, so that
other work on the machine counts little. Between calls every request generates tokens, which is not
counted. Whole engines run afterwards (:mod:`benchmarks.drafts.engine`,
:mod:`benchmarks.drafts.foresight`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.cost.cases import NEWLINE, Case, forced, idle, interleave, median, ngram, per_step
from benchmarks.cost.measure import ROUNDS, THREADS
from benchmarks.drafts import engine, foresight, report
from benchmarks.drafts.verify_step import NODES, VerifyStep
from benchmarks.machine import age, machine
from sglang_lp._engine.apply.plan import Plan

ROWS = 16
STEPS = 60
#: Tokens: what a rule costs must not hang on them.
HISTORIES = (1024, 16_384)


def _forced_sequence(history: int) -> Case:
    def params(_row: int) -> Mapping[str, Any]:
        return {"token_ids": [5], "eos_token_ids": [NEWLINE]}

    name = "ForcedSequenceLogitProcessor"
    return Case(f"forced-{history}", name, params, ROWS, history, stock_serves=False)


def measure() -> list[dict[str, Any]]:
    """Measure each rule with each history.

    Returns:
        For each the time of a whole step and of one node, in microseconds.
    """
    rules: dict[str, Callable[[int], Case]] = {
        "idle budget": lambda history: idle(ROWS, history),
        "spent budget": lambda history: forced(ROWS, history),
        "forced sequence": _forced_sequence,
        "n-gram rule": lambda history: ngram(ROWS, history, 3, 1 << 15, "loop"),
    }
    results = []
    for rule, case in rules.items():
        steps = {history: VerifyStep(case(history)) for history in HISTORIES}
        for step in steps.values():
            step.run()  # the first run reads the prompt
        age()
        sides: dict[str, Callable[[], float]] = {
            str(history): partial(per_step, step.run, STEPS, step.commit, time.thread_time)
            for history, step in steps.items()
        }
        with patch.object(Plan, "apply", lambda _plan, _logits: None):
            times = interleave(sides, ROUNDS)
        for history in HISTORIES:
            micro = median(times[str(history)]) * 1e6
            results.append(
                {
                    "rule": rule,
                    "history": history,
                    "step_us": round(micro, 2),
                    "node_us": round(micro / (ROWS * NODES), 2),
                }
            )
    return results


def main() -> int:
    """Measure, store the results, renew the page and print its table."""
    torch.set_num_threads(THREADS)
    results = {
        "machine": {**machine(), "torch_threads": THREADS},
        "rows": ROWS,
        "nodes": NODES,
        "rounds": ROUNDS,
        "rules": measure(),
        "engines": engine.measure(),
        "foresight": foresight.measure(),
    }
    report.PART.store(results)
    return report.show(results)


if __name__ == "__main__":
    sys.exit(main())
