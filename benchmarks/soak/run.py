"""Ten minutes of everything at once on a real server: ``make soak``.

Thirty-two clients ask for all processors with random parameters, on every endpoint, in lists, as
copies and as streams; they hang up, and they send requests that are refused and requests that fail.
The KV cache is so small that requests wait for room and some are retracted. Every answer is checked
by its tokens, against :mod:`support.oracles.definitions` for the processors defined there. The same
load without processors comes first: no step of the scheduler may take 100 ms more than its longest
one. Python's garbage collector is frozen before, as ``docs/operating.md`` advises: looking through
all objects of SGLang takes 400 ms, in whichever step it happens. Stores
``benchmarks/results/soak.json``; the exit code is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from benchmarks.machine import machine
from benchmarks.soak.requests import KINDS, Sent, faulty, good, refused
from benchmarks.stored import FOLDER, store
from benchmarks.trust.siege import events_of, read
from support.catalogues import with_catalogue
from support.models import tiny_model
from support.models.tiny_model import EOS
from support.oracles.greedy import Oracle, Rule, free, rule
from support.plugins import PROBES, steps
from support.servers.census import census
from support.servers.configurations import POLICY
from support.servers.server import Server, launch
from support.watermarks import with_watermark

if TYPE_CHECKING:
    from support.plugins.steps import Steps

__all__ = ["Answer", "Checks", "Seen", "play", "problems", "sums", "warm"]

CLIENTS = 32
SECONDS = 600.0
#: Of the load without processors, in relation to that with them. A shorter one is the stricter
#: standard: its longest step is no longer.
WITHOUT = 0.3
#: Seconds that a step may take beyond the longest one of the load without processors.
LIMIT = 0.1
#: So little room that the clients' requests do not fit.
ARGUMENTS = {
    "chunked_prefill_size": 64,
    "max_total_tokens": 512,
    "schedule_conservativeness": 0.01,
}
#: Lines of the server's log that must not be there.
_NEVER_LOGGED = ("sglang-lp: a step failed", "internal error of sglang-lp", "could not be ended")


class Answer(NamedTuple):
    """The answer to one text of a request.

    Attributes:
        sent: The request.
        place: Of the answer in it.
        tokens: Generated tokens.
    """

    sent: Sent
    place: int
    tokens: list[int]


@dataclass
class Seen:
    """Answers and outcomes that the clients got.

    Attributes:
        outcomes: Number of requests by kind and outcome.
        answers: To be checked.
        unexpected: Answers that should not have come back.
    """

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers: list[Answer] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, sent: Sent, what: str, expected: str) -> None:
        """Record the outcome of a request."""
        with self._lock:
            self.outcomes[sent.kind, what] += 1
            if what != expected:
                self.unexpected.append(f"{sent.kind} {sent.path}: {what}: {sent.body()}"[:600])


# Clients


def play(  # noqa: PLR0913 - a load has this many sides
    server: Server,
    seconds: float,
    *,
    with_processors: bool = True,
    clients: int = CLIENTS,
    seed: int = 1,
    least: int = 0,
) -> tuple[Seen, Steps]:
    """Let clients ask for some time.

    Args:
        server: Has the probes of ``support/plugin``.
        seconds: After which no client begins anything new.
        with_processors: Whether requests name processors; the load is the same without.
        clients: Number of them.
        seed: Another load for every seed.
        least: Answers to be checked that have come before clients stop, on a busy machine after
            ``seconds``.

    Returns:
        What they saw, and the steps of the server meanwhile.
    """
    seen = Seen()
    written = steps.file_of(server.record)
    begin = written.stat().st_size if written.exists() else 0
    end = time.monotonic() + seconds

    def client(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        with httpx.Client(base_url=server.url, timeout=300, trust_env=False) as http:
            while time.monotonic() < end or (len(seen.answers) < least and not seen.unexpected):
                make = rng.choices([good, refused, faulty, _left], [75, 10, 5, 10])[0]
                sent = make(rng)
                if not with_processors:
                    if sent.kind == "refused":
                        continue
                    sent = sent.without_processors()
                _send(http, sent, seen, rng)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(client, range(clients)))
    return seen, steps.read(server.record, begin)


def warm(server: Server, seconds: float) -> None:
    """Let a server make what it makes once, and keep the garbage collector from looking at it."""
    play(server, seconds, clients=8, seed=-1)
    server.post("/freeze_gc", {})


def _left(rng: random.Random) -> Sent:
    """Return a request whose client hangs up."""
    sent = good(rng)
    return replace(sent, kind="left", is_stream="chat" not in sent.path)


def _send(http: httpx.Client, sent: Sent, seen: Seen, rng: random.Random) -> None:
    if sent.kind == "left":
        _hang_up(http, sent, rng)
        seen.note(sent, "left", "left")
        return
    has_fault = sent.kind == "faulty" and sent.asks[0].processor is not None
    expected = "refused" if sent.kind == "refused" else "failed" if has_fault else "served"
    try:
        reply = http.post(sent.path, json=sent.body())
    except httpx.TransportError as error:
        seen.note(sent, f"no answer: {type(error).__name__}", expected)
        return
    if reply.status_code != httpx.codes.OK:
        known = {400: "refused", 500: "failed"}.get(reply.status_code)
        if known == "failed" and not _names_it(sent, reply.text):
            known = None
        seen.note(sent, known or f"HTTP {reply.status_code}: {reply.text[:200]}", expected)
        return
    events = events_of(reply)
    if any("error" in event for event in events):
        seen.note(sent, f"an error: {events[-1]}", expected)
        return
    outputs, aborts = read(events, is_stream=sent.is_stream)
    if aborts:
        failed = aborts == {500} and _names_it(sent, reply.text)
        seen.note(sent, "failed" if failed else f"aborted: {aborts}", expected)
    elif {*outputs} != {*range(len(sent.asks) * sent.copies)}:
        seen.note(sent, f"answers {sorted(outputs)}", expected)
    else:
        seen.note(sent, "served", expected)
        seen.answers.extend(Answer(sent, *one) for one in outputs.items())


def _names_it(sent: Sent, text: str) -> bool:
    """Tell whether an error names the processor that failed."""
    processor = sent.asks[0].processor
    return processor is not None and f"{processor.__name__} failed" in text


def _hang_up(http: httpx.Client, sent: Sent, rng: random.Random) -> None:
    """Send a request, and leave after some of the answer or some milliseconds."""
    patience, events = rng.uniform(0.01, 0.5), rng.randint(1, 20)
    timeout = httpx.Timeout(300, read=patience if not sent.is_stream else 300)
    try:
        with http.stream("POST", sent.path, json=sent.body(), timeout=timeout) as reply:
            for _ in zip(range(events), reply.iter_lines(), strict=False):
                pass
    except httpx.TransportError:
        return


# Checks


class Checks:
    """Checks answers by their tokens.

    Args:
        model: Directory of the served model.
    """

    def __init__(self, model: Path) -> None:
        from transformers import AutoTokenizer

        self._oracle = Oracle(model)
        self._tokenizer = AutoTokenizer.from_pretrained(model)

    def wrong(self, answer: Answer) -> str | None:
        """Return the fault of an answer, or ``None``."""
        sent = answer.sent
        ask = sent.asks[answer.place // sent.copies]
        # What all texts of an OpenAI request share came with the first.
        asked = ask if sent.path == "/generate" else sent.asks[0]
        prompt = ask.prompt
        if "chat" in sent.path:
            text = "".join(map(tiny_model.word, prompt))
            prompt = self._tokenizer.encode(text, add_special_tokens=False)
        done: Rule = free
        if asked.processor is not None:
            done = rule(asked.processor, asked.params or {}, self._tokenizer)
        try:
            self._oracle.check(prompt, answer.tokens, done, sampled=sent.is_sampled)
        except AssertionError as error:
            return f"{asked.processor} {asked.params}: {error}: {sent}"
        short = len(answer.tokens) < sent.tokens and answer.tokens[-1] != EOS
        if short and (asked.params or {}).get("action") != "end":
            return f"{asked.processor} {asked.params}: ended at {len(answer.tokens)}: {sent}"
        return None


_checks: Checks | None = None


def _begin_checks(model: Path) -> None:
    global _checks  # noqa: PLW0603 - one for each process of the pool
    import torch

    torch.set_num_threads(1)
    _checks = Checks(model)


def _check(answers: Sequence[Answer]) -> list[str]:
    if _checks is None:
        raise RuntimeError("_begin_checks() has not run in this process")
    return [wrong for wrong in map(_checks.wrong, answers) if wrong is not None]


def check_all(answers: Sequence[Answer], model: Path) -> list[str]:
    """Return the faults of many answers, checked on all cores."""
    parts = [answers[at : at + 100] for at in range(0, len(answers), 100)]
    with ProcessPoolExecutor(
        os.cpu_count(),
        multiprocessing.get_context("spawn"),
        initializer=_begin_checks,
        initargs=(model,),
    ) as pool:
        return [wrong for part in pool.map(_check, parts) for wrong in part]


# Results


def sums(seen: Steps) -> dict[str, Any]:
    """Return the figures of some steps in milliseconds."""

    def figures(seconds: Sequence[float]) -> dict[str, float]:
        ranked = sorted(seconds)
        at = {"median": statistics.median(ranked), "p99": ranked[math.ceil(len(ranked) * 0.99) - 1]}
        return {name: round(1e3 * one, 2) for name, one in {**at, "longest": ranked[-1]}.items()}

    return {
        "steps": len(seen.cpu),
        "retracted": seen.retracted,
        "cpu_ms": figures(seen.cpu),
        "wall_ms": figures(seen.wall),
    }


def problems(server: Server, seen: Seen, with_: Steps, without: Steps) -> list[str]:
    """Return whatever was not as it should be, the tokens of the answers apart."""
    found = [f"unexpected: {one}" for one in seen.unexpected]
    longer = max(with_.cpu) - max(without.cpu)
    if longer > LIMIT:
        found.append(f"a step worked {1e3 * longer:.0f} ms longer than any without processors")
    found += [f"logged: {line}" for line in _NEVER_LOGGED if line in server.log_text()]
    if not server.is_healthy():
        found.append("the server is not healthy")
    return found


def by_kind(outcomes: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Sort what became of the requests."""
    found: dict[str, dict[str, int]] = {}
    for (kind, what), count in sorted(outcomes.items()):
        found.setdefault(kind, {})[what[:80]] = count
    return found


def _per_processor(answers: Iterable[Answer]) -> dict[str, int]:
    count: Counter[str] = Counter()
    for sent, place, _ in answers:
        ask = sent.asks[0 if sent.path != "/generate" else place // sent.copies]
        count[ask.processor.__name__ if ask.processor else "none"] += 1
    return dict(sorted(count.items()))


def main() -> int:
    """Run and report; return the exit code."""
    parser = argparse.ArgumentParser(description="Ten minutes of everything at once.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the load (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (%(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_model.make(Path(folder) / "model")
        policy = with_watermark(with_catalogue(POLICY, Path(folder)))
        variables = {"SGLANG_LP_POLICY": str(policy)}
        with launch(model, Path(folder), ARGUMENTS, paths=[PROBES], variables=variables) as server:
            warm(server, 5)
            print(f"{WITHOUT * given.seconds:.0f} s without processors ...", flush=True)
            _, without = play(
                server, WITHOUT * given.seconds, with_processors=False, seed=given.seed
            )
            before = census(server, "before")["rss"]
            print(f"{given.seconds:.0f} s with processors ...", flush=True)
            seen, with_ = play(server, given.seconds, seed=given.seed)
            after = census(server, "after")["rss"]
            found = problems(server, seen, with_, without)
        print(f"{len(seen.answers):,} answers to check ...", flush=True)
        wrong = check_all(seen.answers, model)
    kinds = _per_processor(seen.answers)
    if not with_.retracted:
        found.append("no request was retracted: the load is too small to show anything")
    found += [f"no answer of {kind.__name__}" for kind in KINDS if kind.__name__ not in kinds]
    found += [f"wrong: {one}" for one in wrong]
    report = {
        "machine": machine(),
        "clients": CLIENTS,
        "seconds": given.seconds,
        "seed": given.seed,
        "requests": by_kind(seen.outcomes),
        "answers": kinds,
        "answers_checked": len(seen.answers),
        "tokens_checked": sum(len(answer.tokens) for answer in seen.answers),
        "answers_wrong": len(wrong),
        "without_processors": sums(without),
        "with_processors": sums(with_),
        "memory_grown_mib": round((after - before) / 2**20, 1),
        "problems": len(found),
    }
    store(report, FOLDER / "soak.json")
    _show(report, found)
    return 1 if found else 0


def _show(report: dict[str, Any], found: Sequence[str]) -> None:
    for kind, outcomes in report["requests"].items():
        print(f"  {kind:<8} {', '.join(f'{count:,} {what}' for what, count in outcomes.items())}")
    for name in ("without_processors", "with_processors"):
        load = report[name]
        cpu, wall = load["cpu_ms"], load["wall_ms"]
        print(
            f"  {name.replace('_', ' ')}: {load['steps']:,} steps, {load['retracted']:,} retracted,"
            f" longest {cpu['longest']} ms of the processor ({wall['longest']} ms of the clock),"
            f" p99 {cpu['p99']} ms, median {cpu['median']} ms"
        )
    print(
        f"  {report['answers_checked']:,} answers of {report['tokens_checked']:,} tokens checked, "
        f"{report['answers_wrong']} wrong; memory {report['memory_grown_mib']:+} MiB"
    )
    for one in found[:20]:
        print(f"PROBLEM: {one}")
    print("THE SERVER DID NOT STAND" if found else "the server stood")


if __name__ == "__main__":
    sys.exit(main())
