"""One dear request on the two processes of a server: its arrival, its steps, its neighbours."""

from __future__ import annotations

import pickle
import random
import statistics
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import orjson
import torch
from sglang.srt.sampling.sampling_params import SamplingParams

from benchmarks.bounds.cases import LONGEST, SETS, THINKING, VOCAB, Dear
from benchmarks.text import some_tokens
from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.file import save
from sglang_lp.catalogue.source import CatalogueSource
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.front.bounds import MAX_LINKS
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler import sampling
from sglang_lp.server.scheduler.gate import SchedulerGate
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.waiting_queue import WaitingQueue
from sglang_lp.trust import Gate, Policy
from support.fakes.requests import Req
from support.settings import ROOT
from support.watermarks import GREEN, write_key

__all__ = ["Arrival", "Run", "Server", "Steps", "fill_seconds", "floors", "received"]

#: Times that a neighbour comes and goes.
NEIGHBOURS = 3


#: Items of the catalogue; any of 8,192 tokens begins one.
_ITEMS = 200_000

#: The end token of Qwen3.
_EOS = (151_645,)


@cache
def tokenizer() -> Any:
    """Return a tokenizer with as many tokens as a row has logits."""
    from tokenizers import Tokenizer, decoders, models

    names = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = some_tokens(random.Random(0), VOCAB, whole=True)[256:]
    names += [token.decode().replace(" ", "▁") for token in tokens]
    names[-2:] = THINKING
    vocab = {name: token_id for token_id, name in enumerate(names)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.add_special_tokens([*THINKING])  # they keep their ids
    return made


@cache
def _policy() -> Policy:
    """Return the default policy with a catalogue ``items``, whose ids count from 0, and a key."""
    path = ROOT / ".cache" / "bounds-items.cat"
    path.parent.mkdir(exist_ok=True)
    ids = np.arange(_ITEMS, dtype=np.int32)
    codes = np.stack([ids % 8192, 8192 + ids // 8192, np.full_like(ids, 16_384)], axis=1)
    sets = {name: ids % len(SETS) == place for place, name in enumerate(SETS)}
    save(build(codes, sets=sets), path)
    key = write_key(path.parent, "kgw", GREEN)
    return Policy(catalogues={"items": CatalogueSource(file=str(path))}, watermark=str(key))


class Server:
    """The two processes of a server with the default policy: all that knows the engine's inside."""

    def __init__(self) -> None:
        front, scheduler = Guard(_policy()), Guard(_policy())
        self._manager = SimpleNamespace(
            model_config=SimpleNamespace(vocab_size=VOCAB, hf_eos_token_id=_EOS),
            server_args=SimpleNamespace(speculative_algorithm=None),
            preferred_sampling_params=None,
            tokenizer=tokenizer(),
        )
        scheduler.learn(Gate.SCHEDULER, self._manager)
        self._check_list, self._admit = Admission(front).check_list, Admission(front).admit
        pending = PendingResults()
        arrivals = Arrivals()
        self._admit_req = SchedulerGate(scheduler, pending, arrivals).admit_req
        self._hold = WaitingQueue(scheduler, arrivals).hold
        others_run = SimpleNamespace(is_empty=lambda: False)
        self._scheduler = SimpleNamespace(waiting_queue=[], running_batch=others_run)
        self._apply = sampling.Steps(pending).run

    def admit(
        self,
        processor: str,
        texts: Sequence[Mapping[str, Any]],
        copies: int,
        prompt: Sequence[int] = (),
    ) -> None:
        """Do what the HTTP process does for one HTTP request.

        Args:
            processor: Name of the built-in.
            texts: ``custom_params`` of each text.
            copies: Of each text (``n``).
            prompt: Of each text, if it matters here.

        Raises:
            RequestError: It is refused.
        """
        if len(texts) * copies > 1:  # SGLang has given each text what it goes with
            listed = SimpleNamespace(
                batch_size=len(texts),
                parallel_sample_num=copies,
                custom_logit_processor=[processor] * len(texts),
                sampling_params=[{"custom_params": params} for params in texts],
                max_thinking_tokens=None,
            )
            for _ in self._check_list(self._manager, listed):
                pass
        for params in texts:
            sampling_params = SimpleNamespace(custom_params=params, n=copies)
            tokenized = SimpleNamespace(
                custom_logit_processor=processor,
                sampling_params=sampling_params,
                input_ids=prompt,
                mm_inputs=None,
                input_embeds=None,
                session_params=None,
                session_id=None,
            )
            self._admit(tokenized, self._manager, SimpleNamespace())

    def receive(self, request: Any) -> None:
        """Do what the scheduler does when it makes a request."""
        self._admit_req(None, request)
        (row,) = rows_of([request.sampling_params.custom_params])
        if row is None:
            raise RuntimeError(f"{request.custom_logit_processor} was refused in the scheduler")
        self._scheduler.waiting_queue.append(request)

    def begin(self) -> list[Any]:
        """Do what the scheduler does before a step; return the requests that begin with it."""

        def form(scheduler: Any) -> list[Any]:  # with room for all of them
            batch, scheduler.waiting_queue = scheduler.waiting_queue, []
            return batch  # type: ignore[no-any-return]

        begun: list[Any] = self._hold(form, self._scheduler)
        rows = rows_of([request.sampling_params.custom_params for request in begun])
        if any(row is not None and row.unread for row in rows):
            raise RuntimeError("a request began whose prompt was not read; the log says why")
        return begun

    def sample(self, logits: torch.Tensor, custom_params: Sequence[Any]) -> None:
        """Do what the sampler does at each step."""
        self._apply(logits, SimpleNamespace(custom_params=custom_params, grammars=None))


class _Req(Req):
    """A request in the scheduler."""

    def __init__(self, processor: str, params: Mapping[str, Any], prompt: Sequence[int]) -> None:
        own = pickle.loads(pickle.dumps(dict(params)))
        super().__init__(processor, own, prompt=prompt, vocab_size=VOCAB)
        # SGLang's class: the gate checks it faster than a namespace.
        given = self.sampling_params.custom_params
        self.sampling_params: Any = SamplingParams(max_new_tokens=None, custom_params=given)
        self.sampling_params.normalize(None)

    def set_finish_with_abort(self, message: str, status_code: int, err_type: str) -> None:
        raise RuntimeError(f"{err_type} {status_code}: {message}")


def received(processor: str, params: Mapping[str, Any], prompt: Sequence[int]) -> Any:
    """Return a request as the scheduler makes it, out of a message from another process."""
    return _Req(processor, params, prompt)


class Arrival(NamedTuple):
    """Times of the arrival of one request, in seconds: in the HTTP process, in the scheduler."""

    admitted: float
    received: float


class Steps(NamedTuple):
    """Times of the steps of one request, in seconds.

    Attributes:
        read: The longest time before a step in which prompts were read, after the first.
        first: The longest one in which copies began.
        each: The later ones.
    """

    read: float
    first: float
    each: list[float]


class Run:
    """One request in all its copies, from its arrival on."""

    def __init__(self, server: Server, dear: Dear) -> None:
        self._server = server
        prompt, others = dear.prompt(), dear.other_prompts
        texts = dear.copies if dear.texts else 1
        self._each = dear.copies // texts
        # As they come out of JSON: no two texts share anything.
        self._sent = [orjson.loads(orjson.dumps(dear.params_of(text))) for text in range(texts)]
        self.requests = [
            _Req(dear.processor, params, prompt if others is None else others(text))
            for text, params in enumerate(self._sent)
            for _ in range(self._each)
        ]
        self._processor = dear.processor
        self._coming = dear.output()
        self._begun: set[int] = set()
        # A plain neighbour before and one after them.
        self._row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0))
        self._logits = self._row.repeat(dear.copies + 2, 1)
        self._fresh = self._logits._version  # noqa: SLF001 - see step()

    def arrive(self) -> Arrival:
        """Let the request through both gates.

        Raises:
            RequestError: It is refused.
        """
        prompt = self.requests[0].origin_input_ids
        admitted = _spent(
            lambda: self._server.admit(self._processor, self._sent, self._each, prompt)
        )

        def receive() -> None:
            for request in self.requests:
                self._server.receive(request)
            self._begin()

        return Arrival(admitted, _spent(receive))

    def _begin(self) -> None:
        self._begun |= {id(request) for request in self._server.begin()}

    @property
    def _running(self) -> list[_Req]:
        return [request for request in self.requests if id(request) in self._begun]

    def step(self, before: int = 0, after: int = 0) -> float:
        """Return the seconds of a step with so many plain neighbours."""
        params = [request.sampling_params.custom_params for request in self._running]
        custom_params = [*[None] * before, *params, *[None] * after]
        logits = self._logits[: len(custom_params)]
        # torch counts writes: if there were none, the last step left them as they were.
        if self._logits._version != self._fresh:  # noqa: SLF001
            self._logits.copy_(self._row)  # as the model writes them at every step
            self._fresh = self._logits._version  # noqa: SLF001
        return _spent(lambda: self._server.sample(logits, custom_params))

    def decode(self) -> None:
        """Let every copy that has begun generate a token."""
        for request in self._running:
            request.append(self._coming[len(request.output_ids) % len(self._coming)])

    def steps(self, warm: int, count: int, seconds: float) -> Steps:
        """Decode, and return the times of the steps after ``warm`` tokens.

        A request that ends with an error is no longer looked at: see :attr:`ended`.
        """
        read, first = 0.0, self.step()
        while len(self._begun) < len(self.requests):
            self.decode()
            read = max(read, _spent(self._begin))
            first = max(first, self.step())
        for _ in range(warm):
            self.decode()
            self._server.sample(self._logits[:1], [None])  # the clock counts steps
        if warm:
            self.step()  # takes them in at once
        until = time.monotonic() + seconds
        each: list[float] = []
        while len(each) < count and (time.monotonic() < until or len(each) < 3):
            self.decode()
            each.append(self.step())
        return Steps(read, first, each)

    @property
    def ended(self) -> str | None:
        """The error that ended a copy, if any."""
        errors = (getattr(request.to_finish, "message", None) for request in self.requests)
        return next((error for error in errors if error), None)

    def neighbours(self) -> tuple[float, float]:
        """Return the median times of the steps that a neighbour joins, and leaves."""
        joins, leaves = [], []
        for _ in range(NEIGHBOURS):
            for before, after in ((0, 1), (1, 0)):  # leaving, the second one moves all rows
                self.decode()
                joins.append(self.step(before, after))
                self.decode()
                self.step(before, after)
                self.decode()
                leaves.append(self.step())
        return statistics.median(joins), statistics.median(leaves)


def _spent(function: Callable[[], object]) -> float:
    started = time.thread_time()
    function()
    return time.thread_time() - started


def fill_seconds() -> float:
    """Return the seconds of one ``fill_`` of a row."""
    row = torch.zeros(1, VOCAB)
    return statistics.median(_spent(lambda: row.fill_(1.0)) for _ in range(500))


def floors(rows: int) -> dict[str, float]:
    """Return lower bounds in seconds for work on so many rows."""
    logits = torch.zeros(rows, VOCAB)
    prompts = np.zeros((rows, LONGEST), dtype=np.int64)
    links = ["LoopBreakerLogitProcessor"] * 8
    params: dict[str, Any] = {"chain": links}
    for place in range(len(links)):
        params |= {f"{place}.max_pattern_size": 1, f"{place}.min_count": 2**31 - 1}
    chains = MAX_LINKS // len(links)
    idle = Dear("links", "ChainLogitProcessor", params, lambda: _SHORT, lambda: _SHORT, chains)
    run = Run(Server(), idle)
    run.arrive()
    found: dict[str, Callable[[], object]] = {
        f"one `fill_` of {rows} rows": lambda: logits.fill_(1.0),
        f"one reading of {rows} rows (`amax`)": lambda: logits.amax(1),
        f"one reading of {rows} prompts of {LONGEST:,} tokens": prompts.any,
    }
    times = {what: min(_spent(work) for _ in range(3)) for what, work in found.items()}
    times[f"a step of {chains} chains of 8 links that do next to nothing"] = min(
        run.steps(0, 5, 3.0).each
    )
    return times


#: A text that does not matter.
_SHORT = array("q", [7])
