"""Work of a step on a GPU, counted on a fake: ``python -m benchmarks.devices.count``.

A fake GPU (``support.fakes.gpu``) counts operations, copies and waits of every kind of work, and
the bytes that a step allocates on the device. It takes no time and has no noise.
``docs/performance-gpu.md`` shows the table.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, product
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.pages import renew
from benchmarks.tables import table
from sglang_lp import builtins
from sglang_lp._engine.apply.raw import RawLogprobs
from sglang_lp._engine.history.attached import rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.adapters import EngineSettings, adapt, load
from sglang_lp.catalogue.build import build
from sglang_lp.processor import LogitProcessor
from sglang_lp.testing import Batch, Played
from support.catalogues import knowing
from support.fakes.gpu import FakeGpu
from support.models.vocabularies import byte_level
from support.watermarks import GreenMarks, SelfMarks, TournamentMarks

__all__ = ["KINDS", "NODES", "RAW_KINDS", "VOCAB", "Counted", "Kind", "Playing", "count", "main"]

VOCAB = 151_936
EOS, START, STOP = 5, 151_667, 151_668
#: The newest token and four drafted ones.
NODES = 5
#: So many that a call of five tokens ends before the last.
STEPS = 6
ROWS = (1, 32, 256)


class RawLogits(LogitProcessor):
    """Changes its logits itself: two operations, besides the copy that it changes."""

    def edit(self, request: Any, edits: Any) -> None:  # noqa: ARG002 - the logits are all it edits
        """Halve them."""
        request.logits.mul_(0.5).add_(1.0)


class WholeRows(LogitProcessor):
    """Computes all rows at once: one operation."""

    def compute(self, logits: Any, requests: Any, custom_params: Any) -> Any:  # noqa: ARG002
        """Halve them."""
        return logits * 0.5


class Likeliest(LogitProcessor):
    """Bans the likeliest tokens."""

    def edit(self, request: Any, edits: Any) -> None:
        """Ask which they are."""
        edits.ban(request.top(2))


class WaitsInstead(LogitProcessor):
    """Forces a token where EOS is the likeliest, and bans EOS."""

    def edit(self, request: Any, edits: Any) -> None:
        """Leave the answer to the device."""
        edits.force_if(request.is_among_top([EOS], 1), 7).ban([EOS])


class Branches(LogitProcessor):
    """Bans tokens where EOS is the likeliest."""

    def edit(self, request: Any, edits: Any) -> None:
        """Ask for the answer here."""
        if request.is_among_top([EOS], 1):
            edits.ban([7, 8])


class Rows:
    """Bans a token, one request at a time, as a Transformers processor: one operation a row."""

    def __call__(self, _input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Ban it."""
        scores[:, EOS] = float("-inf")
        return scores


class Kind(NamedTuple):
    """A kind of work.

    Attributes:
        name: For the table.
        processor: Class, name of a built-in, or function that makes an adapted class for a device.
        params: ``custom_params`` of a row.
        waits: How often the host may wait in a step, whatever the rows.
        kernels: How many operations a step may launch, whatever the rows.
        each: How many more for each row.
        copies: How many copies to the device a step may make for each row, besides its own.
        tokenizer: The model's, for text.
        raw: Whether the requests ask for the model's own logprobs.
        whole: How many times a step allocates all logits.
        tables: How many more copies a step may make of tables that the device lacks.
        answers: How often a step sends answers to the host, which does not wait for them.
    """

    name: str
    processor: type[LogitProcessor] | str | Callable[[str], Any]
    params: Callable[[int], Mapping[str, Any]]
    waits: int = 0
    kernels: int = 3
    each: int = 0
    copies: int = 0
    tokenizer: Any = None
    raw: bool = False
    whole: int = 0
    tables: int = 0
    answers: int = 0

    @property
    def is_declared(self) -> bool:
        """Whether it says what it edits, and so launches the same whatever the rows."""
        return not self.each and not self.is_dense

    @property
    def is_dense(self) -> bool:
        """Whether it computes on whole rows; with drafts that is the same for more rows."""
        return not isinstance(self.processor, str) and self.processor not in _EDIT


#: Own classes that compute no whole rows.
_EDIT: set[type[LogitProcessor]] = {RawLogits, Likeliest, WaitsInstead, Branches}
#: Finds items of three tokens each, of which 6, the token that rows get, is always one.
_ITEMS = knowing(items=build(np.array([*product([6, 7, 8], repeat=3)], dtype=np.int32)))
_EDIT.update((_ITEMS, GreenMarks, SelfMarks, TournamentMarks))


def _vllm(version: str) -> Any:
    return load("benchmarks.adapters.foreign", f"Bans{version}", "benchmarks")


def _foreign(interface: str, foreign: Any) -> Callable[[str], Any]:
    """Return a function that makes the adapter of another engine's class, new for each batch."""

    def make(device: str) -> Any:
        adapted: Any = adapt(foreign, interface)
        adapted.begin(EngineSettings(device, VOCAB, max_requests=ROWS[-1], max_length=1 << 14))
        return adapted

    return make


def _thinking(**params: Any) -> Callable[[int], Mapping[str, Any]]:
    given = {"thinking_start_token_id": START, "thinking_end_token_id": STOP, **params}
    return lambda _row: given


def _same(**params: Any) -> Callable[[int], Mapping[str, Any]]:
    return lambda _row: params


def _own_list(row: int) -> Mapping[str, Any]:
    return {"token_ids": random.Random(row).sample(range(VOCAB), 100)}


#: Has a token that begins another call after other text.
_OF_STARTS = byte_level(["*&&&&"] * 9, 300)
_TOKENIZER = byte_level(["the cat sat on 12 mats", "日本語の文章と漢字"] * 9, 400)
_TOKENIZER.add_tokens(["<think>", "</think>"])
_CHAIN = {
    "chain": ["DisallowedTokensLogitsProcessor", "ThinkingBudgetLogitProcessor"],
    "0.token_ids": [*range(100)],
    **{f"1.{name}": value for name, value in _thinking(thinking_budget=0)(0).items()},
}
_SOFT_CHAIN = {
    "chain": ["DeepseekOCRNoRepeatNGramLogitProcessor", "ThinkingBudgetLogitProcessor"],
    "0.ngram_size": 2,
    "0.window_size": 90,
    **{
        f"1.{name}": value
        for name, value in _thinking(thinking_budget=10_000, soft_thinking_budget=1)(0).items()
    },
}
_BANS = "DisallowedTokensLogitsProcessor"
_CHAIN_OF_EIGHT = {
    "chain": [_BANS] * 8,
    **{f"{place}.token_ids": [*range(100 * place, 100 * place + 100)] for place in range(8)},
}
_BUDGET = "ThinkingBudgetLogitProcessor"
_NGRAM = "DeepseekOCRNoRepeatNGramLogitProcessor"
#: What reading fetches: the largest logits of all rows, made one tensor for one copy.
_READ = 25
#: What it takes to keep the logits near the largest: sixteen to measure, four to mask.
_NEAR_TOP = 20
#: What deciding takes: to compare the asked logits with the largest, and three to force.
_DECIDE = 8
#: What it takes more to count larger ones.
_COUNT = 3

KINDS = (
    Kind("thinking budget, asleep", _BUDGET, _thinking(thinking_budget=100_000), kernels=0),
    Kind("thinking budget, spent", _BUDGET, _thinking(thinking_budget=0)),
    Kind(
        "soft thinking budget",
        _BUDGET,
        _thinking(thinking_budget=100_000, soft_thinking_budget=1),
        kernels=3 + _DECIDE + _COUNT,
        whole=1,
        answers=1,
    ),
    Kind(
        "thinking budget with `eos_token_ids`",
        _BUDGET,
        _thinking(thinking_budget=100_000, eos_token_ids=[EOS]),
        kernels=3 + _DECIDE,
        answers=1,
    ),
    Kind(
        "thinking budget with `wait_token_id`",
        _BUDGET,
        _thinking(
            thinking_budget=100_000, min_thinking_tokens=90_000, wait_token_id=7, max_waits=1000
        ),
        kernels=3 + _DECIDE,
        answers=1,
    ),
    Kind(
        "thinking budget that looks for loops",
        _BUDGET,
        _thinking(thinking_budget=100_000, max_pattern_size=64),
        kernels=0,
    ),
    Kind(
        "forced words, at the end of the answer",
        "ForcedWordsLogitProcessor",
        _same(token_ids=[3, 4], lengths=[2], eos_token_ids=[EOS]),
        kernels=3 + _DECIDE,
        answers=1,
    ),
    Kind(
        "forced words, past the last moment to begin",
        "ForcedWordsLogitProcessor",
        _same(token_ids=[3, 4], lengths=[2], eos_token_ids=[EOS], within_tokens=2),
    ),
    Kind("disallowed tokens, the same", "DisallowedTokensLogitsProcessor", lambda _: _own_list(0)),
    Kind("disallowed tokens, of each row", "DisallowedTokensLogitsProcessor", _own_list),
    Kind(
        "disallowed tokens, 10,000",
        "DisallowedTokensLogitsProcessor",
        _same(token_ids=[*range(10_000)]),
    ),
    Kind(
        "bans in the answer",
        _BANS,
        _same(token_ids=[*range(100)], where="answer"),
        tokenizer=_TOKENIZER,
    ),
    Kind(
        "bans in the thinking, which is closed",
        _BANS,
        _same(token_ids=[*range(100)], where="thinking"),
        kernels=0,
        tokenizer=_TOKENIZER,
    ),
    Kind("eight bans in a chain", "ChainLogitProcessor", _same(**_CHAIN_OF_EIGHT)),
    Kind("allowed tokens", "AllowedTokensLogitProcessor", _same(token_ids=[*range(1000)])),
    Kind("no repeated 2-grams", _NGRAM, _same(ngram_size=2, window_size=90)),
    Kind("no repeated 30-grams, asleep", _NGRAM, _same(ngram_size=30, window_size=90), kernels=0),
    Kind(
        "bad words",
        "BadWordsLogitProcessor",
        _same(token_ids=[6, 7, 7, 6], lengths=[2, 2]),
    ),
    Kind("DRY", "DRYLogitProcessor", _same()),
    Kind(
        "forced sequence",
        "ForcedSequenceLogitProcessor",
        _same(token_ids=[9] * 100, eos_token_ids=[EOS]),
    ),
    Kind(
        "items of a catalogue",
        _ITEMS,
        _same(catalogue="items", max_items=100),
    ),
    Kind(
        "choices",
        "ChoiceLogitProcessor",
        _same(token_ids=[6] * 200 + [7] * 200, lengths=[200, 200]),
    ),
    Kind("loop breaker", "LoopBreakerLogitProcessor", _same(max_pattern_size=1, min_count=2)),
    Kind(
        "minimum length",
        "MinLengthLogitProcessor",
        _same(min_tokens=1_000_000, eos_token_ids=[EOS]),
    ),
    Kind(
        "scheduled bias",
        "ScheduledBiasLogitProcessor",
        _same(token_ids=[EOS], bias=0.0, final_bias=8.0, end=1_000_000),
    ),
    Kind("temperature", "TemperatureLogitProcessor", _same(temperature=0.3), kernels=1),
    Kind(
        "top-n-sigma",
        "TopNSigmaLogitProcessor",
        _same(top_n_sigma=1.0),
        kernels=_NEAR_TOP,
        whole=3,
    ),
    Kind("length of the answer", "GenLengthLogitProcessor", _same(bias=0.1, eos_token_ids=[EOS])),
    Kind(
        "script, banned everywhere",
        "ScriptLogitProcessor",
        _same(scripts=["Han"], mode="ban"),
        tokenizer=_TOKENIZER,
    ),
    Kind(
        "script, banned in the answer",
        "ScriptLogitProcessor",
        _same(
            scripts=["Han"],
            mode="ban",
            where="answer",
            thinking_start="<think>",
            thinking_end="</think>",
        ),
        tokenizer=_TOKENIZER,
    ),
    Kind(
        "boxes",
        "LocateAnythingBoxGrammarLogitProcessor",
        _same(
            box_start_token_id=6,
            box_end_token_id=9,
            coord_start_token_id=1000,
            coord_end_token_id=2000,
            none_token_id=10,
        ),
    ),
    Kind(
        "likelier words",
        "BiasWordsLogitProcessor",
        _same(words=[" the", "cat"], weights=[2.0, 3.0]),
        tokenizer=_TOKENIZER,
    ),
    Kind(
        "limit on calls",
        "ToolCallLimitLogitProcessor",
        _same(
            max_tool_calls=1,
            tool_call_starts=["&&&&"],  # of the token that rows get
            tool_call_end="*",
            eos_token_ids=[EOS],
        ),
        tokenizer=_OF_STARTS,
    ),
    Kind("watermark, green lists", GreenMarks, _same(), kernels=9, whole=2, tables=1),
    Kind("watermark, lists that the token seeds", SelfMarks, _same(), waits=1, kernels=3 + _READ),
    Kind(
        "watermark, tournament of 30 layers",
        TournamentMarks,
        _same(),
        kernels=192,
        whole=5,
        tables=1,
    ),
    Kind("cited tokens", "CiteFromPromptLogitProcessor", _same(bias=1.5, eos_token_ids=[EOS])),
    Kind(
        "trigger phrase, which pools",
        "TriggerPhraseLogitProcessor",
        _same(phrase_token_ids=[8, 9], before_token_ids=[10, 11]),
        kernels=12,
    ),
    Kind("chain of two", "ChainLogitProcessor", lambda _: _CHAIN),
    Kind(
        "chain of two, one asks",
        "ChainLogitProcessor",
        lambda _: _SOFT_CHAIN,
        0,
        3 + _DECIDE + _COUNT,
        whole=1,
        answers=1,
    ),
    Kind(
        "own class that asks `request.is_among_top`",
        WaitsInstead,
        _same(),
        kernels=3 + _DECIDE,
        answers=1,
    ),
    Kind("the same, and branches on the answer", Branches, _same(), 1, 3 + _READ),
    Kind("own class that reads `request.top`", Likeliest, _same(), 1, 3 + _READ),
    Kind("own class that changes `request.logits`", RawLogits, _same(), 1, 8, 3),
    Kind("own class that computes whole rows", WholeRows, _same(), 1, 9),
    Kind("adapted class of vLLM, V1", _foreign("vllm-v1", _vllm("V1")), _same(), 1, 9),
    Kind("adapted class of vLLM, V2", _foreign("vllm-v2", _vllm("V2")), _same(), 1, 11, 1),
    Kind("adapted class of Transformers", _foreign("transformers", Rows), _same(), 1, 8, 1, 1),
)

#: Rows that lose tokens, rows with a forced token, and rows that change in another way.
RAW_KINDS = tuple(
    kind._replace(name=f"{kind.name}, with raw logprobs", raw=True, kernels=kind.kernels + 16)
    for kind in KINDS
    if kind.name in {"disallowed tokens, the same", "DRY", "forced sequence"}
)


class Counted(NamedTuple):
    """The most that one step of a kind of work did.

    Attributes:
        kernels: Operations launched.
        first: Copies to the device in the first step, which copies the permanent edits.
        to_device: Copies to the device in a later step.
        to_host: Copies to the host.
        waits: Times that the host waited.
        allocated: Bytes of new tensors on the device.
        ended: Requests that an error ended; a count is valid without any.
    """

    kernels: int
    first: int
    to_device: int
    to_host: int
    waits: int
    allocated: int
    ended: int


class Playing:
    """A batch whose requests do some kinds of work, in turn, on a device.

    Args:
        kinds: The kinds.
        rows: Number of requests.
        device: As torch names it.
        width: Nodes of the drafts: more than one for verify steps.
    """

    def __init__(self, kinds: Sequence[Kind], rows: int, device: str, *, width: int = 1) -> None:
        self._batch, self._width = Batch(), width
        made = [(kind, _made(kind, device)) for kind in kinds]
        self._played = [
            _played(kind, processor, row)
            for row, (kind, processor) in zip(range(rows), cycle(made), strict=False)
        ]
        self._params = [one.custom_params for one in self._played]
        for own in rows_of(self._params) if kinds[0].raw else ():
            own.host.raw = RawLogprobs()  # type: ignore[union-attr]  # each has a row
        tokens = [6] * width
        links = [*range(1, width), -1], [-1] * width
        self._drafts = Drafts(width, [tokens] * rows, *([part] * rows for part in links))

    def step(
        self,
        logits: torch.Tensor,
        *,
        masked: bool = False,
        temperatures: torch.Tensor | None = None,
    ) -> Any:
        """Edit logits of shape ``(rows * width, VOCAB)``.

        Args:
            logits: Changed in place.
            masked: Whether a grammar has masked every row.
            temperatures: Of the rows, shape ``(rows, 1)``, where requests ask for raw logprobs.

        Returns:
            The model's own logprobs, or ``None``.
        """
        return self._batch.step(
            logits,
            rows_of(self._params),
            self._params,
            range(len(logits)) if masked else (),
            drafts=(lambda: self._drafts) if self._width > 1 else None,
            width=self._width,
            temperatures=temperatures,
        )

    def commit(self) -> None:
        """Let every request generate a token."""
        for one in self._played:
            one.source.append(6)

    @property
    def ended(self) -> int:
        """Number of requests that an error ended."""
        return sum(one.error is not None for one in self._played)


def count(kinds: Sequence[Kind], rows: int, *, width: int = 1, masked: bool = False) -> Counted:
    """Count the steps of a batch.

    Args:
        kinds: What its requests do, in turn.
        rows: How many they are.
        width: Nodes of the drafts: more than one for verify steps.
        masked: Whether a grammar has masked every row.
    """
    gpu = FakeGpu()
    with gpu.counting():  # an adapted class may allocate on the device
        playing = Playing(kinds, rows, "cuda", width=width)
    logits = gpu.tensor(rows * width, VOCAB)
    asking = kinds[0].raw
    steps: list[tuple[int, ...]] = []
    for _ in range(STEPS):
        with gpu.counting():
            temperatures = gpu.tensor(rows, 1) if asking else None
            raw = playing.step(logits, masked=masked, temperatures=temperatures)
            if raw is not None:
                token_ids = gpu.tensor(rows * width, dtype=torch.int64)
                raw.logprobs(gpu.tensor(rows * width), token_ids)
        launched = sum(gpu.kernels.values())
        first = 0 if steps else gpu.to_device
        later = gpu.to_device if steps else 0
        steps.append((launched, first, later, gpu.to_host, gpu.waits, gpu.allocated))
        playing.commit()
    most = [max(column) for column in zip(*steps, strict=True)]
    return Counted(*most, playing.ended)  # type: ignore[call-arg]  # one more than there are columns


def _made(kind: Kind, device: str) -> Any:
    found = kind.processor
    if isinstance(found, str):
        return getattr(builtins, found)
    return found if isinstance(found, type) else found(device)


def _played(kind: Kind, processor: Any, row: int) -> Played:
    prompt = [START, 6, 7, 6, 7]
    params, tokenizer = kind.params(row), kind.tokenizer
    return Played(processor, params, prompt, tokenizer=tokenizer, vocab_size=VOCAB)


def page_block() -> str:
    """Count everything, and return the table."""
    heads = ["work", *(f"{rows} rows" for rows in ROWS), f"{ROWS[1]} rows, drafts of {NODES - 1}"]
    lines = [
        f"Counted with torch {torch.__version__.partition('+')[0]}, a vocabulary of {VOCAB:,}.",
        "Each cell: operations, copies to the device, waits, and bytes allocated on the device.",
        "",
    ]
    rows = []
    for kind in (*KINDS, *RAW_KINDS):
        cells = [count([kind], rows) for rows in ROWS]
        if not kind.is_dense:
            cells.append(count([kind], ROWS[1], width=NODES))
        shown = [
            f"{one.kernels}, {one.to_device}, {one.waits}, {_bytes(one.allocated)}" for one in cells
        ]
        rows.append([kind.name, *shown, *["-"] * (4 - len(shown))])
    return "\n".join([*lines, *table(heads, rows)])


def _bytes(number: int) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"


def main() -> int:
    """Count everything, and renew the page."""
    counted = page_block()
    print(counted)
    renew("performance-gpu.md", "devices", counted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
