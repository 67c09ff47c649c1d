"""Plays every built-in and adapter on the same histories, as one rank of a model does.

Run as a script with the rank's number: prints a digest of the edited logits of each as JSON. The
clock and its pace, ``random`` and, by PYTHONHASHSEED, the order of sets are another on every rank;
and so is which requests come first, which share a batch, and in which rows. That is more than real
ranks differ in, which get the same requests in the same order.
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

from sglang_lp import Edits, LogitProcessor, Request, builtins
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.adapters import AdaptedProcessor, EngineSettings, adapt, load
from sglang_lp.testing import Played
from support.catalogues import serving
from support.models.tiny_model import EOS
from support.models.vocabularies import byte_level
from support.watermarks import GreenMarks, SelfMarks, TournamentMarks
from tests.live.test_foreign import KINDS
from tests.live.test_history import CASES

VOCAB = 1024
STEPS = 40
#: How often each is played, and how many come in one step at most.
COPIES = 2
MOST_AT_ONCE = 4
#: Parameters that are text, whose vocabulary is full of sets; and keys of a server.
TEXTS = [
    (builtins.BadWordsLogitProcessor, {"words": ["river", "stone", "a b"], "ignore_case": True}),
    (
        builtins.BiasWordsLogitProcessor,
        {"words": ["river", "river bed", "stone"], "weights": [2.0, 3.0, 4.0], "max_times": 2},
    ),
    (serving(), {"catalogue": "items", "trigger_token_ids": [300], "max_items": 1000}),
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
    (GreenMarks, {}),
    (SelfMarks, {}),
    (TournamentMarks, {}),
    (builtins.ScriptLogitProcessor, {"scripts": ["Latin"], "mode": "allow"}),
    (
        builtins.ToolCallLimitLogitProcessor,
        {
            "max_tool_calls": 1,
            "tool_call_starts": ["river"],
            "tool_call_end": "stone",
            "eos_token_ids": [0],
        },
    ),
]


class _ByTheClock(LogitProcessor):
    """Edits that depend on the clock, which the comparison of ranks must find."""

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban a token by the clock."""
        edits.ban([int(time.monotonic()) % VOCAB])


class _ByASet(LogitProcessor):
    """Edits that depend on the order of a set."""

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban a token by the first name of several."""
        edits.ban([int(next(iter({f"{number}" for number in range(VOCAB)})))])


class _ByWhoCameFirst(LogitProcessor):
    """Edits that depend on the number of earlier requests."""

    came = 0

    def start(self, request: Request) -> int:
        """Count requests."""
        type(self).came += 1
        return self.came

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban a token by the number of the request."""
        edits.ban([request.state])


#: Processors that part ranks.
PARTING = (_ByTheClock, _ByASet, _ByWhoCameFirst)


def _disturb(rank: int) -> None:
    """Make clock and chance another on every rank, and each rank slower than the last."""
    random.seed(rank)
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, partial(_late, getattr(time, name), rank))


def _late(clock: Callable[[], float], rank: int) -> float:
    return 1e6 * rank + 1e3**rank * clock()


def _kinds() -> Iterator[tuple[str, Any, Any]]:
    # Twice, because two requests come in the same order on half of all pairs of ranks.
    parting = [(processor, {}) for processor in PARTING * 2]
    cases = [case for case in CASES if case[0] is not builtins.WatermarkLogitProcessor]
    for processor, params in (*cases, *TEXTS, *parting):
        yield processor.__name__, processor, params
    for name, params in KINDS:
        if isinstance(name, str) and name != "echo":
            made: type[AdaptedProcessor] = adapt(
                load("support.processors.foreign", name, "rank"),
                interface="dynamo" if name.startswith("Dynamo") else None,
            )
            made.begin(EngineSettings(vocab_size=VOCAB))
            yield name, made, params


class _Playing:
    """One request, with logits that are the same on every rank, and a digest of the edited ones."""

    def __init__(self, processor: Any, params: Any, tokenizer: Any) -> None:
        self.played = Played(processor, params, [5, 6, 7], tokenizer=tokenizer, vocab_size=VOCAB)
        self.digest = hashlib.sha256()
        self._drawn = torch.Generator().manual_seed(1)

    def logits(self) -> torch.Tensor:
        """Draw those of the next step: few likely tokens, which come again."""
        logits = torch.randn(1, VOCAB, generator=self._drawn)
        logits[:, 300:320] += 6
        return logits

    def goes_on(self, edited: torch.Tensor) -> bool:
        """Take a step's edited logits and their likeliest token."""
        played, token_id = self.played, int(edited.argmax(-1))
        self.digest.update(edited.numpy().tobytes())
        self.digest.update(f"{token_id} {played.error}".encode())
        if played.error is not None or token_id == EOS:
            return False
        played.source.append(token_id)
        return len(played.output) < STEPS


def main(rank: int) -> None:
    """Print what this rank does."""
    _disturb(rank)
    text = "the river runs by the stone river bed and riverside a b " * 20
    tokenizer = byte_level([text], VOCAB)
    kinds = [*_kinds()] * COPIES
    order = random.sample(range(len(kinds)), len(kinds))
    said = [""] * len(kinds)
    batch, running = Batch(), dict[int, _Playing]()
    while order or running:
        for place in [order.pop() for _ in range(min(len(order), random.randrange(MOST_AT_ONCE)))]:
            running[place] = _Playing(*kinds[place][1:], tokenizer)
        rows = random.sample([*running], len(running))
        if not rows:
            continue
        given = [running[place].played.custom_params for place in rows]
        logits = torch.cat([running[place].logits() for place in rows])
        batch.step(logits, rows_of(given), given)
        for place, edited in zip(rows, logits, strict=True):
            if not running[place].goes_on(edited):
                said[place] = running.pop(place).digest.hexdigest()
    names = [f"{name} {orjson.dumps(params).decode()}" for name, _, params in kinds]
    sys.stdout.write(orjson.dumps([*zip(names, said, strict=True)]).decode() + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
