"""Ten thousand hostile requests against a real server that goes on serving good ones.

Run as part of ``make bench-trust``. The good requests are sent twice, alone and under attack; the
exit code is 1 unless every good request succeeds both times with the same tokens, every hostile
one is refused, and the server is healthy at the end. Stores ``benchmarks/results/siege.json``.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "tests" / "engine"
sys.path[:0] = [str(ROOT / "tests" / "trust"), str(ENGINE), str(ENGINE / "server_side")]

import constructions  # noqa: E402 - lies beside the tests
import tiny_model  # noqa: E402
from bench_trust import machine  # noqa: E402
from harness import Server, launch  # noqa: E402

from sglang_lp import builtins  # noqa: E402

HOSTILE = 10_000
ATTACKERS = 8
GOOD_AT_ONCE = 4
#: Larger ones are sent once; what they would prove again is how fast a megabyte is uploaded.
REPEATED_CHARS = 10_000
#: How the guard's messages begin.
_GUARD = re.compile(r'"(custom_logit_processor|DisallowedTokensLogitsProcessor): ')


def good_requests() -> list[dict[str, Any]]:
    """Greedy requests with and without processors, each with parameters of its own."""
    bodies = []
    for number in range(40):
        prompt = [2 + (number * 7 + i) % 256 for i in range(8 + number % 5)]
        ban = builtins.DisallowedTokensLogitsProcessor, {"token_ids": [174, 471 + number]}
        force = builtins.ForcedSequenceLogitProcessor, {"token_ids": [300 + number, 301, 302]}
        grams = (
            builtins.DeepseekOCRNoRepeatNGramLogitProcessor,
            {
                "ngram_size": 2 + number % 3,
                "window_size": 100,
            },
        )
        processor, params = (ban, force, grams, (None, None))[number % 4]
        body: dict[str, Any] = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": 32, "custom_params": params},
        }
        if processor is not None:
            body["custom_logit_processor"] = processor.to_str()
        bodies.append(body)
    return bodies


def hostile_requests() -> Iterator[dict[str, Any]]:
    """Every construction, over and over, and parameters that do not fit."""
    payloads: list[Any] = []
    for _, payload in constructions.everything():
        try:
            json.dumps(payload)
        except (TypeError, ValueError):
            continue  # nothing that a request could carry
        if payload is not None and payload != "":  # those two ask for no processor
            payloads.append(payload)
    wrong: list[Any] = [None, {}, {"token_ids": "x"}, {"token_ids": [-1]}, {"token_ids": [10**9]}]
    wrong += [{"token_ids": [1], "extra": 1}, {"token_ids": [1.5]}, {"token_ids": [True]}]
    good = builtins.DisallowedTokensLogitsProcessor.to_str()
    for turn in itertools.count():
        for payload in payloads:
            if turn == 0 or len(str(payload)) <= REPEATED_CHARS:
                yield hostile_body(payload, {"token_ids": [1]})
        for params in wrong:
            yield hostile_body(good, params)


def hostile_body(payload: Any, params: Any) -> dict[str, Any]:
    return {
        "input_ids": [5, 6, 7],
        "sampling_params": {"temperature": 0, "max_new_tokens": 2, "custom_params": params},
        "custom_logit_processor": payload,
    }


def outcome(url: str, body: dict[str, Any], client: httpx.Client) -> tuple[str, Any]:
    """Return what became of a request, in a word, and its tokens if it was served."""
    headers = {"content-type": "application/json"}
    reply = client.post(f"{url}/generate", content=json.dumps(body), headers=headers)
    if reply.status_code != httpx.codes.OK:
        by = "the guard" if _GUARD.search(reply.text) else "SGLang's schema"
        return f"HTTP {reply.status_code} by {by}", None
    answer = reply.json()
    if "output_ids" not in answer or answer["meta_info"]["finish_reason"]["type"] == "abort":
        return "aborted", None
    return "served", answer["output_ids"]


def serve_good(server: Server, bodies: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    with (
        httpx.Client(timeout=300, trust_env=False) as client,
        ThreadPoolExecutor(GOOD_AT_ONCE) as pool,
    ):
        return list(pool.map(lambda body: outcome(server.url, body, client), bodies))


def attack(server: Server) -> tuple[Counter[str], list[str], float]:
    """Send the hostile requests; return what became of them, those served, and the seconds."""
    supply = itertools.islice(hostile_requests(), HOSTILE)
    lock = threading.Lock()
    outcomes: Counter[str] = Counter()
    served: list[str] = []

    def attacker(_: int) -> None:
        with httpx.Client(timeout=300, trust_env=False) as client:
            while True:
                with lock:
                    body = next(supply, None)
                if body is None:
                    return
                what, _tokens = outcome(server.url, body, client)
                with lock:
                    outcomes[what] += 1
                    if what == "served":
                        served.append(json.dumps(body)[:200])

    start = time.monotonic()
    with ThreadPoolExecutor(ATTACKERS) as pool:
        list(pool.map(attacker, range(ATTACKERS)))
    return outcomes, served, time.monotonic() - start


def main() -> int:
    bodies = good_requests()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model.make(Path(folder) / "model")
        with launch(model, Path(folder), {}) as server:
            alone = serve_good(server, bodies)
            rounds = []
            with ThreadPoolExecutor(1) as pool:
                under_attack = pool.submit(attack, server)
                while not under_attack.done():
                    rounds.append(serve_good(server, bodies))
                outcomes, served, seconds = under_attack.result()
            healthy = server.is_healthy()
    answers = [answer for answers in (alone, *rounds) for answer in answers]
    failed = sum(what != "served" for what, _ in answers)
    changed = sum(
        tokens != expected
        for answers in rounds
        for (_, tokens), (_, expected) in zip(answers, alone, strict=True)
    )
    report = {
        "machine": machine(),
        "hostile_requests": HOSTILE,
        "hostile_outcomes": dict(outcomes),
        "hostile_per_second": round(HOSTILE / seconds, 1),
        "good_requests_under_attack": len(bodies) * len(rounds),
        "good_requests_failed": failed,
        "good_outputs_changed": changed,
        "server_healthy_at_the_end": healthy,
    }
    (ROOT / "benchmarks" / "results" / "siege.json").write_text(json.dumps(report, indent=2) + "\n")
    for key, value in report.items():
        if key != "machine":
            print(f"{key.replace('_', ' '):<32} {value}")
    for body in served:
        print(f"SERVED: {body}")
    good = healthy and not failed and not changed and not served
    print("the server stood" if good else "THE SERVER DID NOT STAND")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
