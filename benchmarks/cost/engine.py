"""A whole SGLang engine, with a thinking budget that does nothing and without it.

The model is random and has one layer of width 32, so that a step is as cheap as possible with a
vocabulary of 151,936. Three engines run: the toolkit; the toolkit with a policy that gives every
request the same budget; and SGLang without the toolkit. Where a request may have no processor, runs
with and without the budget take turns.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from benchmarks.cost.cases import THINK, interleave, median
from support.processes import play
from support.settings import CPU_ARGUMENTS, ROOT, environment

#: On the import path of an engine, makes SGLang load :mod:`benchmarks.cost.timing`.
TIMING = Path(__file__).with_name("plugin")
MODEL = ROOT / ".cache" / "bench-model"
SIDES = ("ours", "default", "stock")
#: Gives the requests of the second engine their budget.
POLICY = Path(__file__).with_name("default_budget.toml")
HISTORIES = (64, 8192)
ROWS = 16
STEPS = 128
#: Ticks of the progress bar.
RUNS = len(SIDES)
#: Long, because the prompts of 8k are read at the speed of the machine.
TIMEOUT = 1800


def measure(rounds: int, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """Measure the engines, one after the other.

    Args:
        rounds: Runs with and without the processor, for each history.
        tick: Called after each.

    Returns:
        For each engine and history the times of a step in microseconds: without a processor
        (``None`` if every request has one), with it, and the part spent in the processor and the
        code that calls it.
    """
    results: list[dict[str, Any]] = []
    for side in SIDES:
        with tempfile.TemporaryDirectory() as directory:
            results += _in_new_process(side, rounds, Path(directory))
        tick()
    return results


def _in_new_process(side: str, rounds: int, directory: Path) -> list[dict[str, Any]]:
    timing = directory / "timing"
    timing.touch()
    variables = {
        "SGLANG_PLUGINS": "sglang_lp_timing",
        "SGLANG_LP_TIMING": str(timing),
        "SGLANG_LP_TIMING_SIDE": "stock" if side == "stock" else "ours",
    }
    if side == "default":
        variables["SGLANG_LP_POLICY"] = str(POLICY)
    env = environment(variables, [TIMING])
    job = {"side": side, "rounds": rounds}
    results: list[dict[str, Any]] = play(__name__, job, directory, env, TIMEOUT)
    return results


def main(asked: str, answer: str) -> None:
    """Start an engine in this process and measure it."""
    from sglang import Engine

    from demo.model import ensure_bench_model

    job = orjson.loads(Path(asked).read_bytes())
    engine = Engine(
        model_path=str(ensure_bench_model(MODEL)),
        skip_tokenizer_init=True,
        chunked_prefill_size=16_384,
        **{**CPU_ARGUMENTS, "max_total_tokens": (max(HISTORIES) + 2 * STEPS) * ROWS},
    )
    results = [_measured(engine, job["side"], history, job["rounds"]) for history in HISTORIES]
    Path(answer).write_bytes(orjson.dumps(results))
    engine.shutdown()


def _measured(engine: Any, side: str, history: int, rounds: int) -> dict[str, Any]:
    from sglang_lp import client

    processor = client.attach("Qwen3ThinkingBudgetLogitProcessor", thinking_budget=1_000_000)
    if side == "stock":
        from sglang.srt.sampling import custom_logit_processor as stock

        payload = stock.Qwen3ThinkingBudgetLogitProcessor.to_str()
    else:
        payload = processor.payload
    random_ = random.Random(history)
    prompts = [
        [THINK, *(random_.randrange(1000, 150_000) for _ in range(history - 1))]
        for _ in range(ROWS)
    ]
    timing = Path(os.environ["SGLANG_LP_TIMING"])

    own: dict[str, list[float]] = {"apply": [], "finish": []}

    def per_step(*, with_processor: bool, steps: int = STEPS) -> float:
        sampling: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": steps}
        more: dict[str, Any] = {}
        if with_processor and side != "default":
            sampling["custom_params"] = {"thinking_budget": 1_000_000}
            more["custom_logit_processor"] = payload
        before = timing.stat().st_size
        engine.generate(input_ids=prompts, sampling_params=sampling, **more)
        found: dict[str, list[float]] = {"apply": [], "finish": [], "step": []}
        with timing.open() as file:
            file.seek(before)
            for line in file:
                what, spent = line.split()
                found.setdefault(what, []).append(float(spent))
        if with_processor:
            for what, spent_so_far in own.items():
                spent_so_far.extend(found[what])
        # Few of them read a prompt, which takes longer.
        return median(found["step"])

    runs = {"without": partial(per_step, with_processor=False)} if side != "default" else {}
    runs["with"] = partial(per_step, with_processor=True)
    for run in runs.values():
        run(steps=4)
    for warm_up in own.values():
        warm_up.clear()
    times = interleave(runs, rounds)
    return {
        "engine": side,
        "history": history,
        "without_us": round(median(times["without"]) * 1e6, 1) if "without" in times else None,
        "with_us": round(median(times["with"]) * 1e6, 1),
        # SGLang's own side has no part in deciding which requests end.
        "own_us": round((median(own["apply"]) + ROWS * median(own["finish"] or [0.0])) * 1e6, 1),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
