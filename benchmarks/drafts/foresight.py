"""Verify steps of forced tokens, with drafts that know them and with drafts that do not.

The benchmark counts steps, so the speed and the load of the machine do not matter.
:mod:`support.processors.unforeseen` forces the same tokens without foresight. Each run has a server
whose NGRAM cache was emptied.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

from sglang_lp.builtins import ForcedSequenceLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.client import attach
from support.cpu import speculation
from support.models import draft_models, tiny_model
from support.plugins import PROBES
from support.processes import play
from support.processors import unforeseen
from support.servers.configurations import SERVERS
from support.settings import CPU_ARGUMENTS, environment

__all__ = ["measure"]

#: Title -> server of the tests, and the arguments that differ here.
_ENGINES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "DFLASH, blocks of 6": ("dflash", {}),
    "EAGLE, chains of 5": (
        "eagle chains",
        {"speculative_num_steps": 5, "speculative_num_draft_tokens": 6},
    ),
    "NGRAM, trees of 8": ("ngram trees, mixed chunks", {}),
}
ROWS = 8
_START, _END = tiny_model.FREQUENT[:2]
#: Closing and budget, in tokens.
_CLOSING, _BUDGET = 25, 4
#: Title -> class with foresight, class without, tokens of the answer, and how many are not forced.
_CASES: Mapping[str, tuple[type, type, int, int]] = {
    "40 forced tokens": (ForcedSequenceLogitProcessor, unforeseen.Sequence, 40, 0),
    "the same, and 20 free ones": (ForcedSequenceLogitProcessor, unforeseen.Sequence, 60, 20),
    f"{_BUDGET} thinking tokens, and a closing of {_CLOSING}": (
        ThinkingBudgetLogitProcessor,
        unforeseen.Budget,
        _BUDGET + _CLOSING,
        0,
    ),
}


def measure() -> list[dict[str, Any]]:
    """Count on every engine.

    Returns:
        For each engine and case the tokens of an answer, how many of them come behind what is
        forced, and its verify steps with foresight and without: means over ``ROWS`` prompts.
    """
    results: list[dict[str, Any]] = []
    for name, (server, _) in _ENGINES.items():
        variables = {
            **SERVERS[server][1],
            "SGLANG_LP_POLICY": str(unforeseen.POLICY),
            "SGLANG_PLUGINS": f"sglang_lp,{speculation.NAME}",
        }
        env = environment(variables, [PROBES])
        with tempfile.TemporaryDirectory() as directory:
            job = {"engine": name, "models": directory}
            results += play(__name__, job, Path(directory), env, 1800)
    return results


def main(asked: str, answer: str) -> None:
    """Start an engine in this process and count."""
    from sglang import Engine

    job = orjson.loads(Path(asked).read_bytes())
    server, own = _ENGINES[job["engine"]]
    directory = Path(job["models"])
    tiny = tiny_model.make(directory / "tiny")
    models = {"tiny": tiny, **draft_models.make_all(directory, tiny)}
    arguments = {
        name: str(models[value]) if name.endswith("model_path") else value
        for name, value in {"model_path": "tiny", **SERVERS[server][0], **own}.items()
    }
    engine = Engine(skip_tokenizer_init=True, **{**CPU_ARGUMENTS, **arguments})
    results = []
    for case, (foreseen, silent, length, free) in _CASES.items():
        sides = {"with": foreseen, "without": silent}
        steps = {
            f"steps_{side}": _steps(engine, processor, length) for side, processor in sides.items()
        }
        described = {"engine": job["engine"], "case": case, "free": free}
        results.append(described | steps)
    Path(answer).write_bytes(orjson.dumps(results))
    engine.shutdown()


def _steps(engine: Any, processor: type, length: int) -> float:
    """Return the mean number of verify steps of an answer."""
    engine.flush_cache()  # NGRAM has learned the text
    rng = random.Random(0)
    prompts = [[_START, *rng.sample(range(2, 1024), 15)] for _ in range(ROWS)]
    forced = rng.sample(range(300, 1000), 40)
    params: dict[str, Any] = {"token_ids": forced}
    if issubclass(processor, ThinkingBudgetLogitProcessor):
        params = {
            "thinking_budget": _BUDGET,
            "thinking_start_token_id": _START,
            "thinking_end_token_id": _END,
            "closing_token_ids": forced[: _CLOSING - 1],
        }
    fields = attach(processor, **params).engine_kwargs(
        input_ids=prompts,
        sampling_params={"temperature": 0.0, "ignore_eos": True, "max_new_tokens": length},
    )
    answers = engine.generate(**fields)
    for answer in answers:
        if answer["meta_info"]["completion_tokens"] != length:
            raise RuntimeError(f"expected {length} tokens, got {answer['meta_info']}")
    return fmean(answer["meta_info"]["spec_verify_ct"] for answer in answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
