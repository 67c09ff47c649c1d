"""Costs of masks and raw logprobs in a step and an answer: ``python -m benchmarks.cost.rollouts``.

Every row is edited at every step. The same steps run for plain requests, for requests with SGLang's
sampling masks, and for requests with the model's own logprobs (including the work after the tokens
are known). The cost of an answer is that of its report, written at the last token. Times are
processor times of the thread.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import orjson
import torch

from benchmarks.cost.cases import VOCAB, Batch, Case, disallowed, forced, interleave, others
from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from sglang_lp._engine.apply.raw import RawLogprobs
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.report import report
from sglang_lp.server.scheduler.sampling import Steps

__all__ = ["PART", "main"]

ROUNDS, STEPS = 7, 10
ROWS = (1, 16)
#: Tokens of the answers whose report is measured; half of them are in spans of one.
TOKENS = 1_024


def cases(rows: int) -> Mapping[str, Case]:
    """Return the edited requests: one token forced, some banned, some biased."""
    biased = next(one for one in others(rows, 1_024) if "ScheduledBias" in one.processor)
    return {"forced": forced(rows), "banned": disallowed(rows, same=True), "biased": biased}


def _stepper(case: Case, how: str) -> Callable[[], float]:
    """Return a function that runs steps and returns the seconds of one."""
    batch = Batch(case)
    batch.info.is_all_greedy = True
    hosts = [row.host for row in rows_of(batch.info.custom_params) if row is not None]
    for host in hosts:
        host.returns_sampling_mask = how == "masked" and case.stock_serves
        host.raw = RawLogprobs() if how == "raw" else None
    steps = Steps(PendingResults())
    unedited = torch.randn(case.rows, VOCAB)
    logits = unedited.clone()
    token_ids, logprobs = logits.argmax(-1), torch.zeros(case.rows)

    def run() -> float:
        took = []
        for _ in range(STEPS):
            batch.decode()
            logits.copy_(unedited)
            started = time.thread_time()
            steps.run(logits, batch.info)
            if steps.raw is not None:
                steps.raw.logprobs(logprobs, token_ids)
            took.append(time.thread_time() - started)
        return statistics.median(took)

    run()
    return run


def measure(name: str, rows: int) -> dict[str, Any]:
    """Return microseconds of a step, for each thing that a request may ask for."""
    case = cases(rows)[name]
    hows = ("plain", "raw") if name == "biased" else ("plain", "masked", "raw")
    times = interleave({how: _stepper(case, how) for how in hows}, ROUNDS)
    us = {f"{how}_us": round(min(runs) * 1e6, 1) for how, runs in times.items()}
    return {"edits": name, "rows": rows, **us}


def answer(*, raw: bool) -> dict[str, Any]:
    """Return the time that the report of one answer takes, and its length."""
    case = disallowed(1, same=True)
    took = []
    for _ in range(ROUNDS):
        batch = Batch(case)
        (given,), (row,) = batch.info.custom_params, rows_of(batch.info.custom_params)
        if row is None:
            raise RuntimeError("the request has no row")
        for position in range(0, TOKENS, 2):
            row.edit_log.add(position, forced=position % 4 == 0)
        if raw:
            row.host.raw = RawLogprobs()
            row.host.raw.add(0, [-1.2345678806304932] * (TOKENS // 2))
        reason = SimpleNamespace(to_json=lambda: {"type": "length"})
        req = SimpleNamespace(
            sampling_params=SimpleNamespace(custom_params=given),
            output_ids=[7] * TOKENS,
            origin_input_ids=[1],
            finished_reason=reason,
        )
        started = time.thread_time()
        report(req)
        took.append(time.thread_time() - started)
    return {"us": round(min(took) * 1e6, 1), "bytes": len(orjson.dumps(reason.to_json()))}


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    shown = f"the quietest of {ROUNDS} runs; load average {on['load']}"
    where = f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}, one thread"
    heads = (
        *("each step, all rows edited", "rows", "as it is", "with masks", "with raw logprobs"),
        "that is, an edited row",
    )
    rows = []
    for one in results["steps"]:
        masked = f"{one['masked_us']:,.0f} µs" if "masked_us" in one else "refused"
        each = (one["raw_us"] - one["plain_us"]) / one["rows"]
        rows.append(
            (
                *(one["edits"], str(one["rows"]), f"{one['plain_us']:,.0f} µs", masked),
                *(f"{one['raw_us']:,.0f} µs", f"{each:,.0f} µs"),
            )
        )
    lines = [f"{where}, a vocabulary of {VOCAB:,}, {shown}.", "", *table(heads, rows)]
    plain, raw = (
        f"{one['us']:,.0f} µs and {one['bytes']:,} bytes"
        for one in (results["answer"], results["answer_raw"])
    )
    spans = f"The report of an answer of {TOKENS:,} tokens with {TOKENS // 2} spans"
    lines.extend(("", f"{spans} takes {plain}; with raw logprobs at as many positions {raw}."))
    return "\n".join(lines)


PART = Part("rollouts", "performance.md", page_block)


def main() -> int:
    """Measure, store the results, renew the page and print its table."""
    torch.set_num_threads(1)
    steps = [measure(name, rows) for rows in ROWS for name in cases(rows)]
    results = {
        "machine": machine(),
        "steps": steps,
        "answer": answer(raw=False),
        "answer_raw": answer(raw=True),
    }
    PART.store(results)
    print(page_block(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
