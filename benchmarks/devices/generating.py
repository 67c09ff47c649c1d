"""Tokens a second of one engine, in a process of its own; started by ``benchmarks.devices.engine``.

The records go into a file as they come, so that a run that is cut short leaves what it measured.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import orjson

__all__ = ["ARMS", "Arm", "main"]

VOCAB = 151_936
_EOS, _START, _STOP = 5, 151_667, 151_668
_THINKING = {"thinking_start_token_id": _START, "thinking_end_token_id": _STOP}
_BANNED, _FORCED, _NGRAM = 100, 9, 3
#: Tokens of a repetition that DRY keeps from coming: its penalty is above 100.
_DRY = 12
#: Calls that are timed for each figure.
_CALLS = 2

Tokens = Sequence[int]


class Arm(NamedTuple):
    """Requests of one kind.

    Attributes:
        processor: Name of the class; ``None`` for no processor.
        params: Its parameters.
        is_right: Tells of a row's tokens, and of the same row without a processor, whether the
            processor did its work; ``None`` where that is not checked.
    """

    processor: str | None = None
    params: Mapping[str, Any] = {}
    is_right: Callable[[Tokens, Tokens], bool] | None = None


def _same(row: Tokens, without: Tokens) -> bool:
    return row == without


def _has_no_banned(row: Tokens, _without: Tokens) -> bool:
    return min(row) >= _BANNED


def _begins_with_end(row: Tokens, _without: Tokens) -> bool:
    return row[0] == _STOP


def _is_forced(row: Tokens, _without: Tokens) -> bool:
    return {*row} == {_FORCED}


def _repeats(row: Tokens, size: int) -> bool:
    ngrams = [tuple(row[at : at + size]) for at in range(len(row) - size + 1)]
    return len({*ngrams}) < len(ngrams)


_BANS = {"token_ids": [*range(_BANNED)]}
#: Arms of each engine, by the name in the records; the first has no processor.
ARMS: Mapping[str, Mapping[str, Arm]] = {
    "stock": {
        "no processor": Arm(),
        "budget, idle": Arm(
            "Qwen3ThinkingBudgetLogitProcessor", {"thinking_budget": 1_000_000}, _same
        ),
        # Its history lags by a token, so it writes its newline twice.
        "budget, spent": Arm("Qwen3ThinkingBudgetLogitProcessor", {"thinking_budget": 0}),
        "bans": Arm("DisallowedTokensLogitsProcessor", _BANS, _has_no_banned),
    },
    "toolkit": {
        "no processor": Arm(),
        "budget, idle": Arm(
            "ThinkingBudgetLogitProcessor", {**_THINKING, "thinking_budget": 1_000_000}, _same
        ),
        "budget, spent": Arm(
            "ThinkingBudgetLogitProcessor", {**_THINKING, "thinking_budget": 0}, _begins_with_end
        ),
        "bans": Arm("DisallowedTokensLogitsProcessor", _BANS, _has_no_banned),
        "forced": Arm(
            "ForcedSequenceLogitProcessor",
            {"token_ids": [_FORCED] * 512, "eos_token_ids": [_EOS]},
            _is_forced,
        ),
        "DRY": Arm("DRYLogitProcessor", {}, lambda row, _without: not _repeats(row, _DRY)),
        "n-grams": Arm(
            "DeepseekOCRNoRepeatNGramLogitProcessor",
            {"ngram_size": _NGRAM, "window_size": 1 << 15},
            lambda row, _without: not _repeats(row, _NGRAM),
        ),
    },
}


def main(asked: str, answer: str) -> None:
    """Start the engine of a job and measure it until its deadline."""
    job = orjson.loads(Path(asked).read_bytes())
    records, name = Path(job["out"]), job["engine"]

    def record(**found: Any) -> None:
        with records.open("ab") as file:
            file.write(orjson.dumps({"engine": name, **found}, option=orjson.OPT_APPEND_NEWLINE))

    import torch
    from sglang import Engine
    from sglang.srt.managers import scheduler  # noqa: F401 - its process imports this

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    record(device=device, torch=torch.__version__, sglang=version("sglang"))
    engine = Engine(**job["arguments"])
    record(stage="the engine is started")
    runs = [(shape, arm) for shape in job["shapes"] for arm in ARMS[name]]
    without: list[Tokens] = []
    for at, ((requests, prompt, tokens), arm) in enumerate(runs):
        if time.monotonic() > job["until"]:
            left = (f"{arm}, {shape[0]} requests of {shape[1]}" for shape, arm in runs[at:])
            record(not_reached=[*left])
            break
        call = _Call(engine, name, arm, _prompts(requests, prompt))
        if ARMS[name][arm].processor is None:
            call(4)  # a new number of requests is slow at first, and prompts are cached
        arrival = min(call(1)[0] for _ in range(_CALLS))
        timed = [call(tokens) for _ in range(_CALLS)]
        fast, slow = (pick(seconds for seconds, _ in timed) for pick in (min, max))
        rows = timed[0][1]
        without = rows if ARMS[name][arm].processor is None else without
        record(
            arm=arm,
            requests=requests,
            prompt_tokens=prompt,
            tokens=tokens,
            tokens_per_second=round(requests * tokens / fast, 1),
            step_ms=round(fast / tokens * 1000, 3),
            slower_ms=round(slow / tokens * 1000, 3),
            arrival_ms=round(arrival * 1000, 3),
            decode_ms=round((fast - arrival) / (tokens - 1) * 1000, 3),
            **_judged(ARMS[name][arm], [rows for _, rows in timed], without),
        )
    Path(answer).write_bytes(b"{}")
    engine.shutdown()


def _judged(arm: Arm, calls: Sequence[Sequence[Tokens]], without: Sequence[Tokens]) -> Any:
    """Return how many rows of all calls are wrong, if the arm's are checked."""
    if arm.is_right is None:
        return {}
    pairs = (pair for rows in calls for pair in zip(rows, without, strict=True))
    return {"wrong": sum(not arm.is_right(*pair) for pair in pairs)}


def _prompts(requests: int, length: int) -> list[list[int]]:
    draw = random.Random(requests)
    return [
        [_START, *(draw.randrange(1000, 150_000) for _ in range(length - 1))]
        for _ in range(requests)
    ]


class _Call:
    """Generates with requests of one arm, all at once.

    Args:
        engine: SGLang's ``Engine``.
        name: Which of ``ARMS`` it is.
        arm: The name of the arm.
        prompts: Token ids.
    """

    def __init__(self, engine: Any, name: str, arm: str, prompts: list[list[int]]) -> None:
        self._engine, self._arm, self._prompts = engine, arm, prompts
        processor, params, _ = ARMS[name][arm]
        self._sampling: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
        self._more: dict[str, Any] = {}
        if processor is None:
            return
        self._sampling["custom_params"] = dict(params)
        if name == "stock":
            from sglang.srt.sampling import custom_logit_processor as own

            payload = getattr(own, processor)().to_str()
        else:
            from sglang_lp import client

            attach: Callable[..., Any] = client.attach
            payload = attach(processor, **params).payload
        self._more["custom_logit_processor"] = payload

    def __call__(self, tokens: int) -> tuple[float, list[Tokens]]:
        """Return the seconds of a call, and the tokens of each request.

        Raises:
            RuntimeError: A request ended early.
        """
        sampling = {**self._sampling, "max_new_tokens": tokens}
        began = time.perf_counter()
        answers = self._engine.generate(
            input_ids=self._prompts, sampling_params=sampling, **self._more
        )
        seconds = time.perf_counter() - began
        for answer in answers:
            if answer["meta_info"]["completion_tokens"] != tokens:
                raise RuntimeError(f"{self._arm}: a request ended early, {answer['meta_info']}")
        return seconds, [answer["output_ids"] for answer in answers]


if __name__ == "__main__":
    main(*sys.argv[1:])
