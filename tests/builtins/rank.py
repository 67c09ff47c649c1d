"""Plays every built-in and adapter on the same histories, as one rank of a model does.

Run as a script with the rank's number: prints a digest of the edited logits of each as JSON. The
clock, ``random`` and, by PYTHONHASHSEED, the order of sets are another on every rank.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orjson
import torch

from sglang_lp import builtins
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.rows import rows_of
from sglang_lp.adapters import AdaptedProcessor, EngineSettings, adapt, load
from sglang_lp.testing import Played
from support.tiny_model import EOS
from support.trained import byte_level
from tests.engine.test_foreign import KINDS
from tests.engine.test_history import CASES

VOCAB = 1024
STEPS = 40
#: Parameters that are text, whose vocabulary is full of sets.
TEXTS = [
    (builtins.BadWordsLogitProcessor, {"words": ["river", "stone", "a b"], "ignore_case": True}),
    (
        builtins.ChoiceLogitProcessor,
        {"choices": ["river bed", "riverside", "stone"], "eos_token_ids": [0]},
    ),
    (builtins.DisallowedTokensLogitsProcessor, {"texts": ["er", "o"]}),
    (builtins.ForcedSequenceLogitProcessor, {"text": "the river"}),
    (
        builtins.ForcedWordsLogitProcessor,
        {"words": ["river", "bed"], "within_tokens": 20, "eos_token_ids": [0]},
    ),
    (builtins.LoopBreakerLogitProcessor, {"preset": "reasoning"}),
    (builtins.ScriptLogitProcessor, {"scripts": ["Latin"], "mode": "allow"}),
]


def _disturb(rank: int) -> None:
    """Make clock and chance another on every rank."""
    random.seed(rank)
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, partial(_late, getattr(time, name), 1e6 * rank))


def _late(clock: Callable[[], float], seconds: float) -> float:
    return clock() + seconds


def _kinds() -> Iterator[tuple[str, Any, Any]]:
    for processor, params in (*CASES, *TEXTS):
        yield processor.__name__, processor, params
    for name, params in KINDS:
        if isinstance(name, str) and name != "echo":
            made: type[AdaptedProcessor] = adapt(
                load("support.foreign", name, "rank"),
                interface="dynamo" if name.startswith("Dynamo") else None,
            )
            made.begin(EngineSettings(vocab_size=VOCAB))
            yield name, made, params


def _edited(processor: Any, params: Any, tokenizer: Any) -> str:
    """Return a digest of all edited logits of one request."""
    drawn = torch.Generator().manual_seed(1)
    played = Played(processor, params, [5, 6, 7], tokenizer=tokenizer, vocab_size=VOCAB)
    batch, digest = Batch(), hashlib.sha256()
    for _ in range(STEPS):
        # Few likely tokens, which come again.
        logits = torch.randn(1, VOCAB, generator=drawn)
        logits[:, 300:320] += 6
        batch.step(logits, rows_of([played.custom_params]), [played.custom_params])
        digest.update(logits.numpy().tobytes())
        token_id = int(logits.argmax(-1))
        digest.update(f"{token_id} {played.error}".encode())
        if played.error is not None or token_id == EOS:
            break
        played.source.append(token_id)
    return digest.hexdigest()


def main(rank: int) -> None:
    """Print what this rank does."""
    _disturb(rank)
    text = "the river runs by the stone river bed and riverside a b " * 20
    tokenizer = byte_level([text], VOCAB)
    said = [
        (f"{name} {orjson.dumps(params).decode()}", _edited(processor, params, tokenizer))
        for name, processor, params in _kinds()
    ]
    sys.stdout.write(orjson.dumps(said).decode() + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
