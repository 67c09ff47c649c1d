"""Tokens a second of a real server, with processors and without."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from benchmarks.evidence import arms
from benchmarks.evidence.prompts import PROSE
from demo.speaking import chat

__all__ = ["BATCHES", "TOKENS", "speeds"]

BATCHES = (1, 8, 32)
TOKENS = 32
ROUNDS = 5


def speeds(url: str, server: str, until: float) -> dict[str, dict[str, list[float]]]:
    """Measure the arms in turns: arm -> requests at once -> tokens a second of each round.

    A round counts once all arms have had their turn.

    Args:
        url: Of the server.
        server: Its name.
        until: Nothing is asked after this moment of the monotonic clock.
    """
    found: dict[str, dict[str, list[float]]] = {}
    with (
        httpx.Client(base_url=url, timeout=900, trust_env=False) as http,
        ThreadPoolExecutor(max(BATCHES)) as pool,
    ):

        def post(body: Mapping[str, Any]) -> None:
            http.post("/generate", json=dict(body)).raise_for_status()

        list(pool.map(post, map(_body, range(max(BATCHES)))))  # what is slow but once
        turns = deque(_arms(server).items())
        for _ in range(ROUNDS):
            for size in BATCHES:
                turns.rotate()  # the first run after another size is slower
                rates: dict[str, float] = {}
                for arm, add in turns:
                    if time.monotonic() > until:
                        return found
                    bodies = [add(_body(at)) for at in range(size)]
                    started = time.monotonic()
                    list(pool.map(post, bodies))
                    rates[arm] = size * TOKENS / (time.monotonic() - started)
                for arm in _arms(server):
                    of_size = found.setdefault(arm, {}).setdefault(str(size), [])
                    of_size.append(round(rates[arm], 2))
    return found


def _body(at: int) -> dict[str, Any]:
    prompt = chat(PROSE[at], f"{arms.THINK}\n")
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    return {"input_ids": arms.encode(prompt), "sampling_params": sampling}


#: Banned by their ids, as SGLang's class can: it asks the same of every request.
_IDS: Mapping[str, Any] = {"token_ids": list(range(1_000, 1_064))}


def _arms(server: str) -> Mapping[str, Any]:
    if server == arms.STOCK:
        return {
            "none": arms.none,
            "idle budget": arms.stock_budget(1_000_000),
            "spent budget": arms.stock_budget(TOKENS // 2),
            "disallowed tokens": arms.stock("DisallowedTokensLogitsProcessor", **_IDS),
            "no-repeat n-gram": arms.LOOPS["no-repeat n-gram, SGLang's"][1],
        }
    return {
        "none": arms.none,
        "idle budget": arms.budget(1_000_000),
        "spent budget": arms.budget(TOKENS // 2),
        "disallowed tokens": arms.ours("DisallowedTokensLogitsProcessor", **_IDS),
        "banned words": arms.ours(
            "BadWordsLogitProcessor", words=["because", "there", "would"], ignore_case=True
        ),
        "DRY": arms.LOOPS["DRY"][1],
        "no-repeat n-gram": arms.LOOPS["no-repeat n-gram"][1],
        "LoopBreaker": arms.LOOPS["LoopBreaker, ban"][1],
    }
