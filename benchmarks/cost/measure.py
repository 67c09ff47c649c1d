"""The cost of the processors next to SGLang's own, on a CPU: ``make bench``.

SGLang's classes are called as its sampler calls them, ``processor(rows, params)``, without the
gather and scatter of rows that it adds. The toolkit is called as the sampler calls the server
plugin's ``apply_custom_logit_processor``, so all that it does in a step is counted. Between calls
every request of the toolkit's batches generates a token; that is not counted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.cost import engine, report
from benchmarks.cost.cases import (
    VOCAB,
    Batch,
    Case,
    disallowed,
    dry_at_its_dearest,
    forced,
    idle,
    interleave,
    median,
    ngram,
    others,
    per_step,
    same_bits,
)
from benchmarks.machine import age, machine
from benchmarks.stored import as_json
from sglang_lp import client
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps

THREADS = 2
ROUNDS = 15
#: Times that SGLang is imported, which takes seconds.
SGLANG_IMPORTS = 3
#: Steps of one run: a multiple of the lengths for which n-gram rows sleep.
STEPS = 60
#: Seconds that a run may take, if it can be shortened.
RUN_SECONDS = 0.25

HISTORIES = (256, 1024, 4096, 16_384, 65_536, 131_072)
ROWS = (1, 4, 16, 64, 256)
#: For the processors that SGLang does not have.
OTHERS_ROWS, OTHERS_HISTORIES = 32, (1024, 65_536)
#: Longer than any history here.
WHOLE = 32_768


def all_cases() -> list[Case]:
    """Return every case once: those of the figures and those of the plots."""
    wanted = [
        *(idle(256, history) for history in HISTORIES),
        *(ngram(32, history, 20, WHOLE, "prose") for history in HISTORIES[:4]),
        ngram(32, 16_384, 20, WHOLE, "table"),
        *(idle(rows, 16_384) for rows in ROWS),
        *(ngram(rows, 1024, 30, 90, "prose") for rows in ROWS),
        ngram(256, 1024, 30, 90, "table"),
        ngram(256, 1024, 30, 90, "loop"),
        *(forced(rows) for rows in ROWS),
        disallowed(256, same=True),
        disallowed(256, same=False),
        *(case for history in OTHERS_HISTORIES for case in others(OTHERS_ROWS, history)),
        dry_at_its_dearest(),
    ]
    return list({case.key: case for case in wanted}.values())


def measure(case: Case, rounds: int, tick: Callable[[], None]) -> dict[str, Any]:
    """Measure one case; the two sides must leave the same logits."""
    from sglang.srt.sampling import custom_logit_processor as stock

    batch = Batch(case)
    logits = torch.randn(case.rows, VOCAB)
    apply = partial(Steps(PendingResults()).run, logits, batch.info)
    apply()
    sides: dict[str, Callable[[], float]] = {}
    once = per_step(apply, 3, batch.decode)
    steps = STEPS if once * STEPS < RUN_SECONDS else 20
    sides["ours"] = lambda: per_step(apply, steps, batch.decode)
    if case.stock_serves:
        processor = getattr(stock, case.processor)()
        # Of its own and of one length: SGLang's class keeps no state, and reads all at every step.
        call = partial(processor, logits, Batch(case).info.custom_params)
        few = max(1, min(STEPS, int(RUN_SECONDS / per_step(call, 1))))
        sides["stock"] = lambda: per_step(call, few)
    if _is_forced(case):
        fill = partial(logits.fill_, -torch.inf)
        sides["fill"] = lambda: per_step(fill, steps, batch.decode)
    age()
    times = interleave(sides, rounds, tick)
    if case.stock_serves:
        _check(case, batch)
    return {
        "key": case.key,
        "rows": case.rows,
        "history": case.history,
        **{f"{side}_us": _micro(median(of_side)) for side, of_side in times.items()},
    }


def _is_forced(case: Case) -> bool:
    """Tell whether ``fill_`` of the same rows is measured too."""
    return case.key.startswith("thinking-forced")


def _check(case: Case, batch: Batch) -> None:
    from sglang.srt.sampling import custom_logit_processor as stock

    ours = torch.randn(case.rows, VOCAB)
    expected = ours.clone()
    Steps(PendingResults()).run(ours, batch.info)
    getattr(stock, case.processor)()(expected, batch.info.custom_params)
    if not same_bits(ours, expected):
        raise RuntimeError(f"{case.key}: the toolkit and SGLang left different logits")


def measure_client(rounds: int, tick: Callable[[], None]) -> dict[str, Any]:
    """Measure importing the client and attaching a processor, and SGLang's way to do both."""
    from sglang.srt.sampling import custom_logit_processor as stock

    def attach() -> object:
        return client.attach("Qwen3ThinkingBudgetLogitProcessor", thinking_budget=512)

    to_str = stock.Qwen3ThinkingBudgetLogitProcessor.to_str
    calls = interleave(
        {"ours": lambda: per_step(attach, 2000), "stock": lambda: per_step(to_str, 2000)}, rounds
    )
    tick()
    ours = [_import_seconds("sglang_lp.client") for _ in range(rounds)]
    tick()
    theirs = [_import_seconds(stock.__name__) for _ in range(min(rounds, SGLANG_IMPORTS))]
    tick()
    return {
        "attach": {f"{side}_us": _micro(median(times)) for side, times in calls.items()},
        "import": {
            "ours_us": _micro(median(ours)),
            "stock_us": _micro(median(theirs)),
            "stock_rounds": len(theirs),
        },
    }


def _import_seconds(module: str) -> float:
    """Import a module in a new process; its own start does not count."""
    code = (
        "import time; started = time.perf_counter(); "
        f"import {module}; print(time.perf_counter() - started)"
    )
    output = subprocess.check_output(
        [sys.executable, "-W", "ignore", "-c", code], stderr=subprocess.DEVNULL, text=True
    )
    return float(output.splitlines()[-1])


def _micro(seconds: float) -> float:
    return round(seconds * 1e6, 2)


def main() -> int:
    """Measure everything, print the table, store the results and renew the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost.measure", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each side of a case")
    parser.add_argument(
        "--only", default="", help="measure what has this in its key; store nothing"
    )
    arguments = parser.parse_args()
    rounds: int = arguments.rounds
    torch.set_num_threads(THREADS)
    chosen = [case for case in all_cases() if arguments.only in case.key]
    total = sum(rounds * (1 + case.stock_serves + _is_forced(case)) for case in chosen)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn())
    results: dict[str, Any] = {"machine": {**machine(), "torch_threads": THREADS}, "rounds": rounds}
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("start", total=total)
        tick = partial(progress.advance, task)
        results["cases"] = []
        for case in chosen:
            progress.update(task, description=case.key)
            results["cases"].append(measure(case, rounds, tick))
        if not arguments.only:
            progress.update(task, description="client", total=total + 3)
            results["client"] = measure_client(rounds, tick)
            progress.update(task, description="engine", total=total + 3 + engine.RUNS)
            results["engine_rounds"] = max(2, rounds // 2)
            results["engine"] = engine.measure(results["engine_rounds"], tick)
    if arguments.only:
        print(as_json(results["cases"]).decode(), end="")
        return 0
    report.PART.store(results)
    report.plot(results)
    return report.show(results)


if __name__ == "__main__":
    sys.exit(main())
