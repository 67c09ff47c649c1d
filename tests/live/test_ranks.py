"""Several ranks of one model do the same to every request, and answer as one rank does.

Each rank runs the processors by itself, on logits that all ranks have. What would part them parts
the tokens that they read next, and so the model itself: greedy answers are compared with one
program's, token by token. ``Recorder`` also writes down what each rank saw.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from sglang_lp.builtins import AllowedTokensLogitProcessor
from support.models.tiny_model import FREQUENT
from support.processors import recording
from support.servers.asking import body, recorder, tag
from support.servers.configurations import RANKS, on_servers
from tests.live.test_history import CASES, LONG, a_prompt, mixed, rule_of, until_quiet

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
on_each_server = on_servers(*RANKS)


def check(oracle, request, reply):
    """Check one answer, token for token."""
    assert reply.status == 200, reply.body
    oracle.check(request["input_ids"], reply.output_ids, rule_of(request))


def seen_alike(server, *requests):
    """Check that every rank of a replica saw a request at the same tokens, in the same order."""
    width = server.arguments.get("tp_size", 1)  # of the last stage, which runs processors
    for request in requests:
        lines = until_quiet(server, tag(request))
        by_rank = {}
        for line in lines:
            seen = line["serial"], line["position"], line["output_ids"], line["fed"]
            by_rank.setdefault(line["pid"], []).append(seen)
        assert len(by_rank) == width
        one, *others = by_rank.values()
        assert all(other == one for other in others)


@on_each_server
def test_every_builtin_leaves_what_one_rank_leaves(server, oracle):
    rng = random.Random(3)
    requests = [body(a_prompt(rng), *case) for case in CASES]
    for request, reply in zip(requests, server.at_once(requests), strict=True):
        check(oracle, request, reply)


@on_each_server
@pytest.mark.parametrize("stagger", [0, 0.02])
def test_requests_that_join_and_leave_are_seen_alike(server, oracle, stagger):
    requests = mixed(random.Random(4), 24)
    replies = server.at_once(requests, stagger)
    for request, reply in zip(requests, replies, strict=True):
        check(oracle, request, reply)
    params = [request["sampling_params"].get("custom_params") or {} for request in requests]
    seen_alike(
        server, *(one for one, given in zip(requests, params, strict=True) if "tag" in given)
    )


@on_each_server
def test_sampled_answers_are_seen_alike_and_are_what_a_processor_leaves(server):
    allowed = [*FREQUENT, *range(300, 305)]
    watched = [recorder([7, 8], steering=True, temperature=1.0) for _ in range(4)]
    params = {"token_ids": allowed}
    kept = body([9], AllowedTokensLogitProcessor, params, temperature=1.0, max_new_tokens=30)
    *replies, reply = server.at_once([*watched, kept])

    assert {*reply.output_ids} <= {*allowed}
    assert len({tuple(one.output_ids) for one in replies}) > 1
    seen_alike(server, *watched)


@on_each_server
def test_a_fault_a_finish_and_a_refusal_are_every_ranks(server, oracle):
    neighbours = [recorder([400 + i, 7], steering=True) for i in range(3)]
    requests = [
        *neighbours,
        body([5], recording.Raises, {"at": 4}),
        body([5], recording.BansAll, {"at": 0}),
        body([5], recording.Finishes, {"at": 6}),
        body([5], recording.Unlisted, {}),
    ]
    *beside, raised, banned, finished, refused = server.at_once(requests)

    assert [raised.status, banned.status, refused.status] == [500, 500, 400]
    assert finished.finish_reason == {"type": "stop", "matched": "enough"}
    assert len(finished.output_ids) == 7
    for request, reply in zip(neighbours, beside, strict=True):
        check(oracle, request, reply)
    seen_alike(server, *neighbours)


@on_each_server
def test_a_client_that_hangs_up_and_one_that_is_aborted_leave_every_rank(server, oracle):
    neighbours = [recorder([500 + i, 7], steering=True, max_new_tokens=80) for i in range(3)]
    leaver = recorder([510, 7], steering=True, max_new_tokens=LONG)
    aborted = {**recorder([511, 7], steering=True, max_new_tokens=LONG), "rid": "to abort"}
    with ThreadPoolExecutor(3) as pool:
        beside = pool.submit(server.at_once, neighbours)
        left = pool.submit(server.stream, "/generate", leaver, leave_after=5)
        ended = pool.submit(server.stream, "/generate", aborted)
        left.result()
        assert server.post("/abort_request", {"rid": "to abort"}).status == 200
        assert ended.result().finish_reason["type"] == "abort"
    for request, reply in zip(neighbours, beside.result(), strict=True):
        check(oracle, request, reply)
    seen_alike(server, *neighbours, leaver, aborted)


@contextmanager
def slowed(process):
    """Stop a process again and again for the length of the block."""
    over = threading.Event()

    def stop_and_go():
        while not over.is_set():
            os.kill(process, signal.SIGSTOP)
            over.wait(0.05)
            os.kill(process, signal.SIGCONT)
            over.wait(0.02)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(stop_and_go)
        try:
            yield
        finally:
            over.set()
        done.result()


@on_each_server
@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_that_is_slow_does_as_the_others_do(server, oracle, rank):
    asked = recorder([7], max_new_tokens=2)
    server.post("/generate", asked)
    processes = sorted({line["pid"] for line in until_quiet(server, tag(asked))})
    requests = [recorder([600 + i, 7], steering=True, max_new_tokens=30) for i in range(4)]
    with slowed(processes[rank]):
        replies = server.at_once(requests, 0.03)
    for request, reply in zip(requests, replies, strict=True):
        check(oracle, request, reply)
    seen_alike(server, *requests)
