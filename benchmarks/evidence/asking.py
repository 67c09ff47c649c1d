"""Asks the servers, for as long as there is time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from benchmarks.evidence import arms
from benchmarks.evidence.answers import Answer, Ask, Kept
from demo.server import DRAFTS
from demo.speaking import DIRECTORY
from support.cpu import decoding, rotary, speculation, strict
from support.plugins import PROBES
from support.servers.server import Server, launch

__all__ = ["AT_ONCE", "SERVERS", "ask_all", "start"]

#: Requests in a batch.
AT_ONCE = 32
#: So many of a server run side by side, each on one thread: a second thread saves one of them
#: little, since much of a step of so small a model is between its products of matrices.
COPIES = 2
#: What an answer may take on a busy machine.
SECONDS = 900

_CPU = f"{rotary.NAME},{decoding.NAME}"
_OURS = {"SGLANG_PLUGINS": f"sglang_lp,{_CPU}"}
_STOCK = {"SGLANG_PLUGINS": _CPU}
_SERIAL = {"disable_overlap_schedule": True}
#: Name -> SGLang's arguments and environment variables, in the order in which they are asked.
SERVERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str]]] = {
    arms.OURS: ({"grammar_backend": "xgrammar"}, _OURS),
    arms.STOCK: ({}, _STOCK),
    arms.STOCK_SERIAL: (_SERIAL, _STOCK),
    arms.DRAFTS: (
        DRAFTS,
        {
            **speculation.VARIABLES,
            "SGLANG_PLUGINS": f"sglang_lp,{speculation.NAME}",
        },
    ),
    arms.OURS_SERIAL: (_SERIAL, _OURS),
    arms.STRICT: (
        {
            "grammar_backend": "xgrammar",
            # Its delimiters are those of the prompts, and no token of the model.
            "reasoning_parser": "deepseek-r1",
            "enable_strict_thinking": True,
        },
        # Without a number here a budget of a request is not looked at.
        {"SGLANG_PLUGINS": f"{_CPU},{strict.NAME}", "SGLANG_MAX_THINK_TOKENS": "1000000"},
    ),
}


@contextmanager
def start(name: str) -> Iterator[list[str]]:
    """Run the copies of one of the servers for the length of a ``with`` block.

    Yields:
        Their URLs.
    """
    with ThreadPoolExecutor(COPIES) as pool, ExitStack() as running:
        copies = [_launch(name) for _ in range(COPIES)]
        started = [pool.submit(running.enter_context, copy) for copy in copies]
        yield [copy.result().url for copy in started]


@contextmanager
def _launch(name: str) -> Iterator[Server]:
    arguments, variables = SERVERS[name]
    room = {"max_total_tokens": 32_768, "max_running_requests": AT_ONCE}
    with (
        tempfile.TemporaryDirectory() as scratch,
        launch(
            DIRECTORY,
            Path(scratch),
            {**room, **arguments},
            paths=[PROBES],
            # A waiting thread leaves its core to the busy threads.
            variables={"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", **variables},
        ) as server,
    ):
        yield server


def ask_all(
    urls: Sequence[str], asks: Sequence[Ask], kept: Kept, until: float, tick: Callable[[], None]
) -> None:
    """Ask in this order, and keep what comes.

    Args:
        urls: Of the copies of the server, which take turns.
        asks: The requests.
        kept: Where answers are.
        until: No request is sent after this moment of the monotonic clock.
        tick: Called after each.
    """

    def one(ask: Ask, url: str) -> None:
        if time.monotonic() < until:
            kept.put(ask, _answer(http, url, ask))
        tick()

    with httpx.Client(timeout=SECONDS, trust_env=False) as http:
        for alone in (False, True):
            turns = cycle(urls)
            with ThreadPoolExecutor(1 if alone else AT_ONCE * len(urls)) as pool:
                sent: list[Future[None]] = [
                    pool.submit(one, ask, next(turns)) for ask in asks if ask.alone is alone
                ]
                wait(sent)
                for answered in sent:
                    answered.result()


def _answer(http: httpx.Client, url: str, ask: Ask) -> Answer:
    reply = http.post(f"{url}/generate", json=dict(ask.body))
    if reply.is_error:
        return Answer(error=f"HTTP {reply.status_code}: {reply.text[:300]}")
    said = reply.json()
    ids = tuple(said["output_ids"])
    return Answer(
        text=said["text"],
        output_ids=ids,
        finished=said["meta_info"]["finish_reason"]["type"] == "stop",
        nats=_nats(http, url, ask.body["input_ids"], ids) if ask.judged else (),
    )


def _nats(
    http: httpx.Client, url: str, prompt: Sequence[int], answer: Sequence[int]
) -> tuple[float, ...]:
    """Return the model's own logprob of each token of an answer, in nats."""
    body = {
        "input_ids": [*prompt, *answer],
        "sampling_params": {"temperature": 0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": len(prompt) - 1,
    }
    reply = http.post(f"{url}/generate", json=body).raise_for_status().json()
    judged = reply["meta_info"]["input_token_logprobs"][-len(answer) :]
    return tuple(-value for value, *_ in judged)
