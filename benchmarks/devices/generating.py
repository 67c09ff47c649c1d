"""Tokens a second of one engine, in a process of its own; started by ``benchmarks.devices.engine``.

The records go into a file as they come, so that a run that is cut short leaves what it measured.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

__all__ = ["ARMS", "main"]

VOCAB = 151_936
PROMPT_TOKENS = 32
_EOS, _START, _STOP = 5, 151_667, 151_668
_THINKING = {"thinking_start_token_id": _START, "thinking_end_token_id": _STOP}
_BUDGET = "ThinkingBudgetLogitProcessor"

#: Processor and parameters of each arm; an engine without the toolkit runs only the first arm.
ARMS: Mapping[str, tuple[Any, Mapping[str, Any]] | None] = {
    "no processor": None,
    "budget, idle": (_BUDGET, {**_THINKING, "thinking_budget": 1_000_000}),
    "budget, spent": (_BUDGET, {**_THINKING, "thinking_budget": 0}),
    "bans": ("DisallowedTokensLogitsProcessor", {"token_ids": [*range(100)]}),
    "forced": ("ForcedSequenceLogitProcessor", {"token_ids": [9] * 512, "eos_token_ids": [_EOS]}),
    "DRY": ("DRYLogitProcessor", {}),
    "n-grams": (
        "DeepseekOCRNoRepeatNGramLogitProcessor",
        {"ngram_size": 3, "window_size": 1 << 15},
    ),
}


def main(asked: str, answer: str) -> None:
    """Start the engine of a job and measure it until its deadline."""
    job = orjson.loads(Path(asked).read_bytes())
    records = Path(job["out"])

    def record(**found: Any) -> None:
        with records.open("ab") as file:
            line = {"engine": job["engine"], **found}
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    from sglang import Engine
    from sglang.srt.managers import scheduler  # noqa: F401 - its process imports this

    record(stage="SGLang is imported")
    engine = Engine(**job["arguments"])
    record(stage="the engine is started")
    arms = [*ARMS] if job["engine"] == "toolkit" else [*ARMS][:1]
    runs = [(requests, arm) for requests in job["requests"] for arm in arms]
    for at, (requests, arm) in enumerate(runs):
        if time.monotonic() > job["until"]:
            record(not_reached=[f"{arm}, {requests} requests" for requests, arm in runs[at:]])
            break
        if arm == arms[0]:
            _generate(engine, requests, arm, 4)  # a new number of requests is slow at first
        seconds = _generate(engine, requests, arm, job["tokens"])
        record(
            arm=arm,
            requests=requests,
            tokens_per_second=round(requests * job["tokens"] / seconds, 1),
            step_ms=round(seconds / job["tokens"] * 1000, 3),
        )
    Path(answer).write_bytes(b"{}")
    engine.shutdown()


def _generate(engine: Any, requests: int, arm: str, tokens: int) -> float:
    """Generate tokens for a number of requests at once; return the seconds.

    Raises:
        RuntimeError: A request ended early.
    """
    from sglang_lp import client

    draw = random.Random(requests)
    prompts = [
        [_START, *(draw.randrange(1000, 150_000) for _ in range(PROMPT_TOKENS - 1))]
        for _ in range(requests)
    ]
    sampling: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": tokens}
    more: dict[str, Any] = {}
    chosen = ARMS[arm]
    if chosen is not None:
        name, params = chosen
        sampling["custom_params"] = params
        more["custom_logit_processor"] = client.attach(name, **params).payload
    began = time.perf_counter()
    answers = engine.generate(input_ids=prompts, sampling_params=sampling, **more)
    seconds = time.perf_counter() - began
    for answer in answers:
        if answer["meta_info"]["completion_tokens"] != tokens:
            raise RuntimeError(f"{arm}: a request ended early, {answer['meta_info']}")
    return seconds


if __name__ == "__main__":
    main(*sys.argv[1:])
