"""Ten thousand hostile requests against a real server that goes on serving good ones.

A part of ``make bench PART=trust``. The server is started with ``sglang-lp serve``. Hostile and
good requests go to every endpoint that takes processors, one by one and as lists, answered at once
and as streams. The good ones are sent twice, alone and under attack; the exit code is 1 unless
every good request succeeds both times with the same tokens, every hostile one is refused, and the
server is healthy at the end. Stores ``benchmarks/results/siege.json``.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson

from benchmarks.machine import machine
from benchmarks.stored import FOLDER, store
from sglang_lp import builtins
from support import constructions
from support.models import tiny_model
from support.servers.server import Server, launch

HOSTILE = 10_000
ATTACKERS = 8
GOOD_AT_ONCE = 4
#: Larger ones are sent once; what they would prove again is how fast a megabyte is uploaded.
REPEATED_CHARS = 10_000
#: How the guard's messages begin.
_GUARD = re.compile(r'"(custom_logit_processor|DisallowedTokensLogitsProcessor): ')
#: What became of a hostile request, if all is well: a refusal, though it may be in a stream.
_REFUSED = re.compile("HTTP (200, then )?4[0-9][0-9] by ")
_POLICY = 'stock = "upgrade"\n'
_BAN = builtins.DisallowedTokensLogitsProcessor.to_str()


class Form(NamedTuple):
    """A way to send a request.

    Attributes:
        path: Of the endpoint.
        is_list: Whether several requests go in one.
        is_stream: Whether the answer comes as a stream.
    """

    path: str
    is_list: bool
    is_stream: bool

    def __str__(self) -> str:
        return self.path + ", list" * self.is_list + ", stream" * self.is_stream


FORMS = tuple(
    Form(path, is_list, is_stream)
    for path in ("/generate", "/v1/completions", "/v1/chat/completions")
    for is_list in (False, True)
    for is_stream in (False, True)
    if not (is_list and "chat" in path)  # a chat is one request
)


class Ask(NamedTuple):
    """A request's processor and parameters.

    Attributes:
        prompt: Token ids.
        payload: Its ``custom_logit_processor``.
        params: Its ``custom_params``.
    """

    prompt: Sequence[int]
    payload: Any
    params: Any


class Request(NamedTuple):
    """A request as it is sent."""

    form: Form
    body: dict[str, Any]


def request(form: Form, ask: Ask, beside: tuple[Ask, Ask], tokens: int) -> Request:
    """Put what is asked for into a form, in a list between two others."""
    asks = (beside[0], ask, beside[1]) if form.is_list else (ask,)
    body: dict[str, Any] = {"stream": form.is_stream}
    if form.path == "/generate":
        sampling = {"temperature": 0, "max_new_tokens": tokens}
        each = [
            {
                "input_ids": one.prompt,
                "custom_logit_processor": one.payload,
                "sampling_params": {**sampling, "custom_params": one.params},
            }
            for one in asks
        ]
        together = {key: [one[key] for one in each] for key in each[0]}
        return Request(form, body | (together if form.is_list else each[0]))
    # All requests of an OpenAI list share their processor.
    body |= {"custom_logit_processor": ask.payload, "custom_params": ask.params}
    body |= {"model": "tiny", "temperature": 0, "max_tokens": tokens}
    # SGLang has no token ids in the stream of a chat; its text has a word for nearly every token.
    body["return_token_ids"] = not ("chat" in form.path and form.is_stream)
    if "chat" in form.path:
        words = "".join(tiny_model.word(258 + token_id) for token_id in ask.prompt)
        body["messages"] = [{"role": "user", "content": words}]
    else:
        body["prompt"] = [one.prompt for one in asks] if form.is_list else ask.prompt
    return Request(form, body)


def good_requests() -> list[Request]:
    """Greedy requests of every form, with and without processors, each with its own parameters."""
    requests = []
    kinds = itertools.product(FORMS, range(4))
    for number, (form, kind) in enumerate(kinds):
        prompt = [2 + (number * 7 + i) % 256 for i in range(8 + number % 5)]
        forced = {"token_ids": [300 + number, 301, 302]}
        payload, params = (
            (_BAN, {"token_ids": [174, 471 + number]}),
            (builtins.ForcedSequenceLogitProcessor.to_str(), forced),
            (
                builtins.DeepseekOCRNoRepeatNGramLogitProcessor.to_str(),
                {"ngram_size": 2 + number % 3, "window_size": 100},
            ),
            (None, None),
        )[kind]
        ask = Ask(prompt, payload, params)
        beside = Ask(prompt[1:], None, None), ask._replace(prompt=prompt[2:])
        requests.append(request(form, ask, beside, 32))
    return requests


def hostile_requests() -> Iterator[Request]:
    """Every construction in every form, over and over, and parameters that do not fit."""
    asks = []
    for _, payload in constructions.everything():
        try:
            json.dumps(payload)  # and not orjson, which refuses what a hostile client can send
        except (TypeError, ValueError):
            continue  # nothing that a request could carry
        if payload is not None:  # that asks for no processor
            asks.append(Ask([5, 6, 7], payload, {"token_ids": [1]}))
    wrong: list[Any] = [None, {}, {"token_ids": "x"}, {"token_ids": [-1]}, {"token_ids": [10**9]}]
    wrong += [{"token_ids": [1], "extra": 1}, {"token_ids": [1.5]}, {"token_ids": [True]}]
    asks += [Ask([5, 6, 7], _BAN, params) for params in wrong]
    beside = Ask([8], _BAN, {"token_ids": [1]}), Ask([9], None, None)
    for turn in itertools.count():
        for number, ask in enumerate(asks):
            if turn == 0 or len(str(ask.payload)) <= REPEATED_CHARS:
                form = FORMS[(number + turn) % len(FORMS)]
                yield request(form, ask, beside, 2)


def outcome(server: Server, sent: Request, client: httpx.Client) -> tuple[str, Any]:
    """Return a request's outcome in a few words, and its tokens if it was served."""
    headers = {"content-type": "application/json"}
    url = server.url + sent.form.path
    try:
        reply = client.post(url, content=json.dumps(sent.body), headers=headers)
    except httpx.TransportError as error:
        return f"no answer: {type(error).__name__}", None
    by = "the guard" if _GUARD.search(reply.text) else "SGLang"
    if reply.status_code != httpx.codes.OK:
        return f"HTTP {reply.status_code} by {by}", None
    events = events_of(reply)
    for event in events:
        if "error" in event:
            return f"HTTP 200, then {event['error'].get('code')} by {by}", None
    outputs, aborts = read(events, is_stream=sent.form.is_stream)
    if aborts:
        return f"HTTP 200, then {aborts.pop()} by {by}", None
    return ("served" if outputs and all(outputs.values()) else "served nothing"), outputs


def events_of(reply: httpx.Response) -> list[Any]:
    """Return the events of a stream, or the answers of a list, or the one answer."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        lines = reply.text.splitlines()
        return [orjson.loads(line[6:]) for line in lines if line.startswith("data: {")]
    answer = orjson.loads(reply.content)
    return answer if isinstance(answer, list) else [answer]


def read(events: list[Any], *, is_stream: bool) -> tuple[dict[int, list[Any]], set[Any]]:
    """Return the tokens of each request of an answer, by its place in the list, and its aborts."""
    outputs: dict[int, list[Any]] = {}
    aborts = set()
    for number, event in enumerate(events):
        for choice in event.get("choices", ()):
            if "delta" in choice:
                new = list(choice["delta"].get("content") or "")
            else:
                new = choice.get("token_ids") or choice.get("response_token_ids") or []
            outputs.setdefault(choice["index"], []).extend(new)
            if choice["finish_reason"] == "abort":
                aborts.add("abort")
        if "output_ids" in event:  # all of them so far
            outputs[event.get("index", 0 if is_stream else number)] = event["output_ids"]
            reason = event["meta_info"]["finish_reason"] or {}
            if reason.get("type") == "abort":
                aborts.add(reason["status_code"])
    return outputs, aborts


def serve_good(server: Server, requests: list[Request]) -> list[tuple[str, Any]]:
    with (
        httpx.Client(timeout=300, trust_env=False) as client,
        ThreadPoolExecutor(GOOD_AT_ONCE) as pool,
    ):
        return list(pool.map(lambda sent: outcome(server, sent, client), requests))


def attack(server: Server) -> tuple[Counter[tuple[str, str]], list[str], float]:
    """Send the hostile requests; return what became of them, those not refused, and the seconds."""
    supply = itertools.islice(hostile_requests(), HOSTILE)
    lock = threading.Lock()
    outcomes: Counter[tuple[str, str]] = Counter()
    not_refused: list[str] = []

    def attacker(_: int) -> None:
        with httpx.Client(timeout=300, trust_env=False) as client:
            while True:
                with lock:
                    sent = next(supply, None)
                if sent is None:
                    return
                what, _tokens = outcome(server, sent, client)
                with lock:
                    outcomes[str(sent.form), what] += 1
                    if not _REFUSED.match(what):
                        body = json.dumps(sent.body)[:300]
                        not_refused.append(f"{what}: {sent.form}: {body}")

    start = time.monotonic()
    with ThreadPoolExecutor(ATTACKERS) as pool:
        list(pool.map(attacker, range(ATTACKERS)))
    return outcomes, not_refused, time.monotonic() - start


def by_form(outcomes: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Sort what became of the hostile requests by their form."""
    result: dict[str, dict[str, int]] = {str(form): {} for form in FORMS}
    for (form, what), count in sorted(outcomes.items()):
        result[form][what] = count
    return result


def main() -> int:
    requests = good_requests()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model.make(Path(folder) / "model")
        policy = Path(folder) / "policy.toml"
        policy.write_text(_POLICY)
        serve = Path(sys.executable).with_name("sglang-lp"), "serve", "--policy", policy, "--"
        arguments = {"enable_custom_logit_processor": None}  # "serve" adds it
        # An idle connection that closes while a request is on its way would look like a failure.
        kept = {"SGLANG_TIMEOUT_KEEP_ALIVE": "600"}  # seconds
        with launch(model, Path(folder), arguments, command=serve, variables=kept) as server:
            alone = serve_good(server, requests)
            rounds = []
            with ThreadPoolExecutor(1) as pool:
                under_attack = pool.submit(attack, server)
                while not under_attack.done():
                    rounds.append(serve_good(server, requests))
                outcomes, not_refused, seconds = under_attack.result()
            healthy = server.is_healthy()
    answers = [answer for answers in (alone, *rounds) for answer in answers]
    failed = Counter(what for what, _ in answers if what != "served")
    changed = sum(
        tokens != expected
        for answers in rounds
        for (_, tokens), (_, expected) in zip(answers, alone, strict=True)
    )
    report = {
        "machine": machine(),
        "hostile_requests": sum(outcomes.values()),
        "hostile_requests_not_refused": len(not_refused),
        "hostile_outcomes": by_form(outcomes),
        "hostile_per_second": round(HOSTILE / seconds, 1),
        "good_requests_under_attack": len(requests) * len(rounds),
        "good_requests_failed": failed.total(),
        "good_outputs_changed": changed,
        "server_healthy_at_the_end": healthy,
    }
    store(report, FOLDER / "siege.json")
    for key, value in report.items():
        if isinstance(value, int | float):
            print(f"{key.replace('_', ' '):<32} {value}")
    for form, counts in by_form(outcomes).items():
        print(f"  {form:<30} {', '.join(f'{count:,} {what}' for what, count in counts.items())}")
    for what, count in failed.items():
        print(f"FAILED: {count} good requests: {what}")
    for what in not_refused[:20]:
        print(f"NOT REFUSED: {what}")
    good = healthy and not failed and not changed and not not_refused
    print("the server stood" if good else "THE SERVER DID NOT STAND")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
