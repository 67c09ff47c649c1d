"""A whole SGLang engine with a thinking budget that does nothing, beside one without.

The model is random, one layer of 32, so that a step is as cheap as it can be with a vocabulary
of 151,936. One engine has the toolkit, the other is SGLang alone; in each, runs with and without
the processor take turns.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.cases import THINK, VOCAB, interleave, median

SERVER_SIDE = Path(__file__).parent / "server_side"
MODEL = Path(__file__).parent.parent / ".cache" / "bench-model"
SIDES = ("ours", "stock")
HISTORIES = (64, 8192)
ROWS = 16
STEPS = 128
#: Ticks of the progress bar.
RUNS = len(SIDES)
#: Long, because the prompts of 8k are read at the speed of the machine.
TIMEOUT = 1800


def measure(rounds: int, tick: Callable[[], None]) -> list[dict[str, Any]]:
    """Measure both engines, one after the other.

    Args:
        rounds: Runs with and without the processor, for each history.
        tick: Called after each.

    Returns:
        For each engine and history the times of a step in microseconds: without a processor,
        with it, and what of it was spent in the code of the processor and what calls it.
    """
    results: list[dict[str, Any]] = []
    for side in SIDES:
        with tempfile.TemporaryDirectory() as directory:
            results += _in_new_process(side, rounds, Path(directory))
        tick()
    return results


def _in_new_process(side: str, rounds: int, directory: Path) -> list[dict[str, Any]]:
    answer, log = directory / "answer.json", directory / "engine.log"
    timing = directory / "timing"
    timing.touch()
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SGLANG_")},
        "PYTHONPATH": f"{SERVER_SIDE}{os.pathsep}{Path(__file__).parent.parent}",
        "SGLANG_PLUGINS": "sglang_lp_timing",
        "SGLANG_LP_TIMING": str(timing),
        "SGLANG_LP_TIMING_SIDE": side,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engine", side, str(answer), str(rounds)],
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):  # the answer tells
                process.wait(TIMEOUT)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not answer.exists():
        tail = log.read_text(errors="replace").splitlines()[-30:]
        raise RuntimeError("the engine gave no answer:\n" + "\n".join(tail))
    results: list[dict[str, Any]] = json.loads(answer.read_text())
    return results


def main(side: str, answer: str, rounds: str) -> None:
    """Start an engine in this process and measure it."""
    from sglang import Engine

    from demo.model import ensure_bench_model

    engine = Engine(
        model_path=str(ensure_bench_model(MODEL)),
        skip_tokenizer_init=True,
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        grammar_backend="none",
        mem_fraction_static=0.1,
        max_total_tokens=(max(HISTORIES) + 2 * STEPS) * ROWS,
        chunked_prefill_size=16_384,
        skip_server_warmup=True,
        enable_custom_logit_processor=True,
        random_seed=1,
    )
    results = [_measured(engine, side, history, int(rounds)) for history in HISTORIES]
    Path(answer).write_text(json.dumps(results))
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

    own: dict[str, list[float]] = {"apply": [], "delay": []}

    def per_step(*, with_processor: bool, steps: int = STEPS) -> float:
        sampling: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": steps}
        more: dict[str, Any] = {}
        if with_processor:
            sampling["custom_params"] = {"thinking_budget": 1_000_000}
            more["custom_logit_processor"] = payload
        before = timing.stat().st_size
        engine.generate(input_ids=prompts, sampling_params=sampling, **more)
        found: dict[str, list[float]] = {"apply": [], "delay": [], "step": []}
        with timing.open() as file:
            file.seek(before)
            for line in file:
                what, spent = line.split()
                found[what].append(float(spent))
        if with_processor:
            for what, spent_so_far in own.items():
                spent_so_far.extend(found[what])
        # Few of them read a prompt, which takes longer.
        return median(found["step"])

    for with_processor in (False, True):
        per_step(with_processor=with_processor, steps=4)
    for warm_up in own.values():
        warm_up.clear()
    times = interleave(
        {
            "without": lambda: per_step(with_processor=False),
            "with": lambda: per_step(with_processor=True),
        },
        rounds,
    )
    return {
        "engine": side,
        "rows": ROWS,
        "history": history,
        "vocabulary": VOCAB,
        "without_us": round(median(times["without"]) * 1e6, 1),
        "with_us": round(median(times["with"]) * 1e6, 1),
        # Without a delay hook its list is empty.
        "own_us": round(sum(median(part or [0.0]) for part in own.values()) * 1e6, 1),
        "runs_us": {name: [round(t * 1e6, 1) for t in part] for name, part in times.items()},
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
