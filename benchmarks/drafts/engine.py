"""Whole SGLang engines: waits for pending results, time of the toolkit's code, accepted drafts.

Each engine plays the same requests four times: without a processor, with a thinking budget that no
answer uses up, with an n-gram rule that acts at every token, and with every token forced, which no
draft knows. The engines:

- a vocabulary of 151,936: its step is the unit for the toolkit's own time;
- the tests' tiny model, for 10,000 steps;
- EAGLE drafts, on a CPU as in the tests.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from benchmarks.cost.engine import MODEL, TIMING
from sglang_lp.client import attach
from support.cpu import speculation
from support.models import draft_models, tiny_model
from support.plugins import PROBES
from support.processes import play
from support.processors import unforeseen
from support.servers.configurations import SERVERS
from support.settings import CPU_ARGUMENTS, environment

__all__ = ["COUNTED", "ROWS", "measure"]

ROWS = 16
#: Steps with the idle budget in the engine that counts.
COUNTED = 10_000
#: A run's new tokens of each request, and how often each processor has its turn.
_LENGTHS: Mapping[str, tuple[int, int]] = {
    "large vocabulary": (128, 5),
    "ordinary": (512, 1 + COUNTED // 512),
    "EAGLE": (48, 2),
}
_EAGLE = "eagle chains"
_OPEN, _CLOSE = tiny_model.FREQUENT[:2]
_PROCESSORS = {
    "none": None,
    "idle budget": attach(
        "ThinkingBudgetLogitProcessor",
        thinking_budget=1 << 20,
        thinking_start_token_id=_OPEN,
        thinking_end_token_id=_CLOSE,
    ),
    "n-gram rule": attach("DeepseekOCRNoRepeatNGramLogitProcessor", ngram_size=1, window_size=20),
    "forced": attach(unforeseen.Sequence, token_ids=[*range(300, 812)]),
}


def measure() -> list[dict[str, Any]]:
    """Measure every engine, one after the other.

    Returns:
        For each engine and processor: steps and rows; how many steps read a pending result, and
        of how many the sampling was delayed; the median time of a step and the mean time of own
        code in it, in microseconds; and, with drafts, the tokens that a verify step accepts.
    """
    results: list[dict[str, Any]] = []
    for name in _LENGTHS:
        with tempfile.TemporaryDirectory() as directory:
            results += _in_new_process(name, Path(directory))
    return results


def _in_new_process(name: str, directory: Path) -> list[dict[str, Any]]:
    timing = directory / "timing"
    timing.touch()
    variables = {
        "SGLANG_LP_TIMING": str(timing),
        "SGLANG_LP_TIMING_SIDE": "ours",
        "SGLANG_LP_POLICY": str(unforeseen.POLICY),
    }
    plugins, paths = ["sglang_lp_timing"], [TIMING]
    if name == "EAGLE":
        variables |= speculation.VARIABLES
        plugins, paths = [*plugins, speculation.NAME], [*paths, PROBES]
    env = environment({"SGLANG_PLUGINS": ",".join(plugins), **variables}, paths)
    job = {"engine": name, "timing": str(timing), "models": str(directory)}
    results: list[dict[str, Any]] = play(__name__, job, directory, env, 1800)
    return results


def main(asked: str, answer: str) -> None:
    """Start an engine in this process and measure it."""
    from sglang import Engine

    job = orjson.loads(Path(asked).read_bytes())
    name = job["engine"]
    length, rounds = _LENGTHS[name]
    engine = Engine(
        skip_tokenizer_init=True,
        **{**CPU_ARGUMENTS, "max_total_tokens": 16_384, **_arguments(name, Path(job["models"]))},
    )
    timing = Path(job["timing"])
    results = [
        {
            "engine": name,
            "processor": processor,
            **_measured(engine, processor, length, turns, timing),
        }
        for processor, turns in zip(_PROCESSORS, (min(rounds, 5), rounds, 1, 1), strict=True)
    ]
    Path(answer).write_bytes(orjson.dumps(results))
    engine.shutdown()


def _arguments(name: str, directory: Path) -> dict[str, Any]:
    """Return the arguments that make an engine what its name says."""
    if name == "large vocabulary":
        from demo.model import ensure_bench_model

        return {"model_path": str(ensure_bench_model(MODEL))}
    tiny = tiny_model.make(directory / "tiny")
    if name == "ordinary":
        return {"model_path": str(tiny)}
    models = draft_models.make_all(directory, tiny)
    return {
        argument: str(models[value]) if argument.endswith("model_path") else value
        for argument, value in SERVERS[_EAGLE][0].items()
    }


def _measured(engine: Any, name: str, length: int, turns: int, timing: Path) -> dict[str, Any]:
    processor = _PROCESSORS[name]
    random_ = random.Random(0)
    prompts = [[_OPEN, *(random_.randrange(2, 1024) for _ in range(15))] for _ in range(ROWS)]
    fields: dict[str, Any] = {
        "input_ids": prompts,
        "sampling_params": {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": length},
    }
    if processor is not None:
        fields = processor.engine_kwargs(**fields)
    short = {**fields["sampling_params"], "max_new_tokens": 8}
    engine.generate(**{**fields, "sampling_params": short})  # the first answer takes longer
    before, answers = timing.stat().st_size, []
    for _ in range(turns):
        answers += engine.generate(**fields)
    spent: dict[str, list[float]] = {
        what: [] for what in ("apply", "finish", "step", "wait", "delay")
    }
    with timing.open() as file:
        file.seek(before)
        for line in file:
            what, seconds = line.split()
            spent[what].append(float(seconds))
    steps = len(spent["step"])
    meta = [answer["meta_info"] for answer in answers]
    drafts = "spec_verify_ct" in meta[0]
    return {
        "steps": steps,
        "waits": len(spent["wait"]),
        "delayed": len(spent["delay"]),
        "step_us": round(median(spent["step"]) * 1e6, 1),
        "own_us": round((sum(spent["apply"]) + sum(spent["finish"])) / steps * 1e6, 1),
        "accept_length": round(
            sum(one["completion_tokens"] for one in meta)
            / sum(one["spec_verify_ct"] for one in meta),
            3,
        )
        if drafts
        else None,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
