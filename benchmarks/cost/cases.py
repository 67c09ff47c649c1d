"""Batches to measure: requests with a history, a decode that goes on, and who edits the logits.

Needs torch, and of SGLang nothing.
"""

from __future__ import annotations

import pickle
import random
import statistics
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from sglang_lp import builtins
from sglang_lp._engine.history.attached import attach_row
from sglang_lp.links import prepare
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest

if TYPE_CHECKING:
    from sglang_lp._engine.history.host import Host

__all__ = [
    "NEWLINE",
    "THINK",
    "VOCAB",
    "Batch",
    "Case",
    "cases",
    "disallowed",
    "dry_at_its_dearest",
    "forced",
    "idle",
    "interleave",
    "median",
    "ngram",
    "others",
    "per_step",
    "same_bits",
]

#: Logits in a row: Qwen3's.
VOCAB = 151_936
#: Qwen3's token ids.
THINK, NEWLINE = 151_667, 198
#: Stand for ``<td>`` and ``</td>``.
CELL, END_CELL = 1, 2

#: More tokens than any measurement decodes.
_TO_COME = 4096


def _prose(random_: random.Random, length: int) -> array[int]:
    """Tokens whose frequencies fall off as those of words do."""
    return array("q", [1000 + int(random_.paretovariate(0.6)) % 150_000 for _ in range(length)])


def _table(random_: random.Random, length: int) -> array[int]:
    """Cells of a table, each with one of twenty values."""
    cells = (t for _ in range(length // 3 + 1) for t in (CELL, random_.randrange(10, 30), END_CELL))
    return array("q", cells)[:length]


def _loop(random_: random.Random, length: int) -> array[int]:
    """Forty tokens over and over."""
    return array("q", [*_prose(random_, 40)] * (length // 40 + 1))[:length]


def _one_token(_random: random.Random, length: int) -> array[int]:
    """One token over and over."""
    return array("q", [1000]) * length


_TEXTS = {"prose": _prose, "table": _table, "loop": _loop}


@dataclass(frozen=True)
class Case:
    """A batch to measure.

    Attributes:
        key: Its name in the results.
        processor: Class name, the same in SGLang and here.
        params: ``custom_params`` of each row.
        rows: Requests in the batch.
        history: Tokens of each request at the start, prompt and output.
        text: Makes tokens of a length.
        opening: The prompt; what follows counts as generated.
        stock_serves: Whether SGLang's class can serve it.
    """

    key: str
    processor: str
    params: Callable[[int], Mapping[str, Any]]
    rows: int
    history: int
    text: Callable[[random.Random, int], array[int]] = _prose
    opening: Sequence[int] = (THINK,)
    stock_serves: bool = True


def _thinking(key: str, rows: int, history: int, budget: int) -> Case:
    def params(_row: int) -> Mapping[str, Any]:
        return {"thinking_budget": budget}

    return Case(key, "Qwen3ThinkingBudgetLogitProcessor", params, rows, history)


def idle(rows: int, history: int) -> Case:
    """Open blocks whose budget is far away."""
    return _thinking(f"thinking-idle-{rows}x{history}", rows, history, 1_000_000)


def forced(rows: int, history: int = 1024) -> Case:
    """Open blocks whose budget is spent: every row is forced at every step."""
    return _thinking(f"thinking-forced-{rows}", rows, history, 0)


def ngram(rows: int, history: int, size: int, window: int, kind: str) -> Case:
    """No n-gram twice in prose, a table or a loop; the cell tokens are whitelisted."""

    def params(_row: int) -> Mapping[str, Any]:
        whitelist = [CELL, END_CELL]
        return {"ngram_size": size, "window_size": window, "whitelist_token_ids": whitelist}

    key = f"ngram-{size}-{window}-{kind}-{rows}x{history}"
    name = "DeepseekOCRNoRepeatNGramLogitProcessor"
    return Case(key, name, params, rows, history, _TEXTS[kind])


def disallowed(rows: int, *, same: bool) -> Case:
    """A hundred banned tokens in each row, the same or others."""
    lists = [random.Random(row).sample(range(VOCAB), 100) for row in range(1 if same else rows)]

    def params(row: int) -> Mapping[str, Any]:
        return {"token_ids": lists[row % len(lists)]}

    key = f"disallowed-{'same' if same else 'different'}-{rows}"
    return Case(key, "DisallowedTokensLogitsProcessor", params, rows, 64, stock_serves=same)


#: Processors that SGLang does not have, with parameters of one row that keep them at work. A choice
#: is made within a few tokens, which leaves nothing to measure.
_OTHERS: Mapping[str, Mapping[str, Any]] = {
    "AllowedTokensLogitProcessor": {"token_ids": [*range(1000)]},
    "BadWordsLogitProcessor": {"token_ids": [*range(1000, 1100)], "lengths": [2] * 50},
    "ChainLogitProcessor": {
        "chain": [
            "DisallowedTokensLogitsProcessor",
            "Qwen3ThinkingBudgetLogitProcessor",
            "DeepseekOCRNoRepeatNGramLogitProcessor",
        ],
        "0.token_ids": [*range(100)],
        "1.thinking_budget": 1_000_000,
        "2.ngram_size": 30,
        "2.window_size": 90,
    },
    "DRYLogitProcessor": {},
    "ForcedSequenceLogitProcessor": {"token_ids": [5], "eos_token_ids": [NEWLINE]},
    "ForcedWordsLogitProcessor": {"token_ids": [3, 4], "lengths": [2], "eos_token_ids": [5]},
    "LoopBreakerLogitProcessor": {"max_pattern_size": 64, "min_count": 4},
    "MinLengthLogitProcessor": {"min_tokens": 1_000_000, "eos_token_ids": [5]},
    "ScheduledBiasLogitProcessor": {
        "token_ids": [5],
        "bias": 0.0,
        "final_bias": 8.0,
        "end": 1_000_000,
    },
    "TriggerPhraseLogitProcessor": {"trigger_token_ids": [3, 4], "phrase_token_ids": [5, 6]},
}


def others(rows: int, history: int) -> list[Case]:
    """The processors that SGLang does not have."""

    def case(name: str, given: Mapping[str, Any]) -> Case:
        key = f"{name}-{rows}x{history}"
        return Case(key, name, lambda _row: given, rows, history, stock_serves=False)

    return [case(name, given) for name, given in _OTHERS.items()]


def dry_at_its_dearest() -> Case:
    """One request whose whole text is one token over and over."""

    def params(_row: int) -> Mapping[str, Any]:
        return {"dry_penalty_last_n": 2048}

    name = "DRYLogitProcessor"
    return Case("dry-one-token", name, params, 1, 4096, _one_token, stock_serves=False)


def cases(rows: int) -> list[Case]:
    """Return the cases of one batch size that need no long history."""
    return [
        idle(rows, 1024),
        forced(rows),
        *(ngram(rows, 1024, 30, 90, kind) for kind in _TEXTS),
        disallowed(rows, same=True),
        disallowed(rows, same=False),
    ]


def _exact(request: FakeRequest) -> Host:
    return StockHost(request, may_lag=False)


class Batch:
    """The requests of a case, as the sampler hands them on, in the middle of their decode.

    Args:
        case: Says which.
        host_of: Makes the host of a request.

    Attributes:
        requests: The requests.
        info: The attributes of SGLang's ``SamplingBatchInfo`` that processors get.
    """

    def __init__(self, case: Case, host_of: Callable[[FakeRequest], Host] = _exact) -> None:
        random_ = random.Random(case.key)
        text = case.text(random_, case.history + _TO_COME)
        processor: Any = getattr(builtins, case.processor)
        self.requests: list[FakeRequest] = []
        self._coming = []
        custom_params = []
        for row in range(case.rows):
            # Each row reads the same text from another place on.
            at = random_.randrange(len(text))
            own = text[at:] + text[:at]
            output = own[: case.history - len(case.opening)]
            request = FakeRequest(case.opening, output, served=True)
            # Every request has its own, as it comes out of a message from another process.
            params = pickle.loads(pickle.dumps(case.params(row)))
            given = request.custom_params(params)
            served = ServedModel(vocab_size=VOCAB)
            attach_row(given, prepare(processor(), params, served), host_of(request))
            self.requests.append(request)
            self._coming.append(iter(own[len(output) :]))
            custom_params.append(given)
        self.info = SimpleNamespace(
            custom_params=custom_params, grammars=None, has_custom_logit_processor=True
        )

    def decode(self) -> None:
        """Let every request generate a token."""
        for request, (token_id,) in zip(self.requests, self.coming(1), strict=True):
            request.append(token_id)

    def coming(self, count: int) -> list[list[int]]:
        """Return the next tokens of each request, which it is yet to generate."""
        return [[*islice(coming, count)] for coming in self._coming]


def interleave(
    sides: Mapping[str, Callable[[], float]], rounds: int, tick: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    """Run all sides in turn, round after round, so that load on the machine meets all alike.

    Args:
        sides: Each runs once and returns its time in seconds per step.
        rounds: How often; every second one goes backwards.
        tick: Called after each run.

    Returns:
        The times of each side.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in reversed(times) if number % 2 else times:
            times[name].append(sides[name]())
            tick()
    return times


def per_step(
    function: Callable[[], object],
    steps: int,
    before: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the mean time of a call in seconds, what comes before each not counted.

    The mean, because rows that sleep make most steps cheap and some dear.
    """
    spent = 0.0
    for _ in range(steps):
        before()
        started = clock()
        function()
        spent += clock() - started
    return spent / steps


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors of logits are equal, -0.0 and NaN told apart."""
    whole = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return torch.equal(one.view(whole), other.view(whole))


def median(times: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(times)
