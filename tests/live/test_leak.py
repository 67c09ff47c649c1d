"""Nothing of a request outlives it, however it ended.

A few thousand requests by default; ``SGLANG_LP_LEAK_REQUESTS=20000`` with
``--log-cli-level=INFO`` for a soak test that tells its figures.
"""

from __future__ import annotations

import logging
import os
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from sglang_lp import builtins
from support.models.tiny_model import EOS
from support.processors import recording
from support.servers.asking import body
from support.servers.census import census
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800), on_servers("default")]

logger = logging.getLogger(__name__)
REQUESTS = int(os.environ.get("SGLANG_LP_LEAK_REQUESTS", "2000"))
#: Requests that travel in one HTTP request.
TOGETHER = 100
#: What the memory of the process may grow by in bytes: allocator noise, not 2,000 requests.
SLACK = 16 << 20

_LIVELY = [
    (recording.Burdened, {}),
    (builtins.ForcedSequenceLogitProcessor, {"token_ids": [300], "eos_token_ids": [EOS]}),
    (builtins.DisallowedTokensLogitsProcessor, {"token_ids": [*range(100)]}),
    (
        builtins.ThinkingBudgetLogitProcessor,
        {"thinking_budget": 1, "thinking_start_token_id": 8, "thinking_end_token_id": 9},
    ),
    (
        builtins.DeepseekOCRNoRepeatNGramLogitProcessor,
        {"ngram_size": 1, "window_size": 50},
    ),
]


def finished(server, rng, lively=_LIVELY):
    """Send a list of requests that come to their ends."""
    parts = [
        body([rng.randrange(2, 1024) for _ in range(4)], *rng.choice(lively), max_new_tokens=n)
        for n in (rng.randint(1, 3) for _ in range(TOGETHER))
    ]
    reply = server.post("/generate", {key: [part[key] for part in parts] for key in parts[0]})
    assert reply.status == 200, reply.body


def failed(server, rng):
    """Send a list of requests that fail at their first token."""
    part = body([rng.randrange(2, 1024)], recording.Raises, {"at": 0})
    reply = server.post("/generate", {key: [part[key]] * TOGETHER for key in part})
    assert reply.status == 500


def aborted(server, rng, lively=_LIVELY[-2:]):
    """Send a list of long requests and hang up."""
    part = body([rng.randrange(2, 1024)], *rng.choice(lively), max_new_tokens=1000)
    together = {key: [part[key]] * (TOGETHER // 5) for key in part}
    assert server.stream("/generate", together, leave_after=3).status == 200


#: Of ten lists seven finish, two fail, one is aborted.
WITH = [*[finished] * 7, *[failed] * 2, aborted]
#: The same requests without a processor, to measure SGLang's own memory.
WITHOUT = [*[partial(finished, lively=[()])] * 9, partial(aborted, lively=[()])]


def play(server, requests, seed, ten=WITH):
    """Send about so many requests, ten lists of them at least."""
    rng = random.Random(seed)
    kinds = ten * max(1, round(requests / TOGETHER / 10))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda kind: kind(server, rng), kinds))


def test_nothing_of_a_request_outlives_it(server):
    play(server, 1000, seed=0)  # fills what may fill up: caches, the allocator
    before = census(server, "before")
    play(server, REQUESTS, seed=1, ten=WITHOUT)
    between = census(server, "between")
    play(server, REQUESTS, seed=1)
    after = census(server, "after")
    alone, grown = between["rss"] - before["rss"], after["rss"] - between["rss"]
    figures = (
        f"{REQUESTS} requests without a processor: {alone / 2**20:+.1f} MiB; as many with one: "
        f"{grown / 2**20:+.1f} MiB, {after['requests']} of the toolkit's objects left"
    )
    logger.info("%s", figures)
    assert grown < SLACK, figures
