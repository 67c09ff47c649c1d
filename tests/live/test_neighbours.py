"""An abort, a client that hangs up and a repeated rid reach their own request, and no other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from support.servers.asking import recorder
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

on_each_server = on_servers("default", "data parallel", "tokenizer workers")
on_a_server = on_servers("default")

#: So slow that SGLang notices meanwhile that a client hung up.
TOKENS = 150


def slow(rid, tokens=TOKENS, **fields):
    """Return the body of a request that runs for some seconds."""
    asked = recorder([5, 7], seconds=0.02, max_new_tokens=tokens, ignore_eos=True)
    asked["sampling_params"] |= fields.pop("sampling", {})
    return {**asked, "rid": rid, **fields}


def ends(reply):
    """Return how each answer of a reply ended, and its number of tokens."""
    answers = reply.body if isinstance(reply.body, list) else [reply.body]
    metas = [answer["meta_info"] for answer in answers]
    return [(meta["finish_reason"]["type"], meta["completion_tokens"]) for meta in metas]


def await_steps(server, since, number):
    """Wait until so many requests have been in a step.

    Args:
        server: Which one.
        since: Size of its record before the requests were sent.
        number: Of requests.
    """
    ends = time.monotonic() + 60
    rids = set()
    while len(rids) < number:
        assert time.monotonic() < ends, rids
        time.sleep(0.1)
        steps = server.records("step", since=since)
        rids = {rid for step in steps for rid in step["rids"] if "HEALTH_CHECK" not in rid}


def beside(server, act, *rids):
    """Return the ends of neighbours with these ids, while another client does something."""
    since = server.recorded()
    with ThreadPoolExecutor(len(rids)) as pool:
        waiting = [pool.submit(server.post, "/generate", slow(rid)) for rid in rids]
        await_steps(server, since, len(rids))
        act()
        replies = [one.result() for one in waiting]
    assert [reply.body["meta_info"]["id"] for reply in replies] == [*rids]
    return [end for reply in replies for end in ends(reply)]


@on_each_server
def test_an_abort_and_a_hang_up_leave_requests_whose_ids_begin_alike(server):
    def act():
        since = server.recorded()
        with ThreadPoolExecutor(2) as pool:
            left = pool.submit(server.stream, "/generate", slow("a", 2_000), leave_after=2)
            ended = pool.submit(server.stream, "/generate", slow("ab", 2_000))
            await_steps(server, since, 3 + 2)  # the neighbours go on
            assert server.post("/abort_request", {"rid": "ab"}).status == 200
            assert ended.result().finish_reason["type"] == "abort"
            left.result()

    assert beside(server, act, "abcdef01234", "a_0", "ab0") == [("length", TOKENS)] * 3


@on_each_server
def test_an_abort_of_an_id_that_nobody_has_ends_nobody(server):
    def act():
        assert server.post("/abort_request", {"rid": "neigh"}).status == 200

    assert beside(server, act, "neighbour") == [("length", TOKENS)]


@on_a_server
@pytest.mark.parametrize("several", ["texts", "copies", "copies of texts", "stream"])
def test_an_abort_reaches_the_texts_and_copies_of_its_request(server, several):
    fields = {"input_ids": [[5, 7], [5, 8]]} if "texts" in several else {}
    sampling = {"sampling": {"n": 2}} if several != "texts" else {}
    asked = slow("mine", 2_000, **fields, **sampling)
    ask = partial(server.stream if several == "stream" else server.post, "/generate", asked)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:

        def act():
            since = server.recorded()
            waiting = pool.submit(ask)
            await_steps(server, since, 2 + (4 if several == "copies of texts" else 2))
            assert server.post("/abort_request", {"rid": "mine"}).status == 200
            assert {kind for kind, _ in ends(waiting.result())} == {"abort"}
            assert time.monotonic() - began < 15

        kept = beside(server, act, "mine too", "min")
    assert kept == [("length", TOKENS)] * 2


@on_a_server
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_repeated_rid_is_refused_and_the_first_goes_on(server, is_streamed, copies):
    first = slow("again", 120, sampling={"n": copies})
    with ThreadPoolExecutor(1) as pool:
        since = server.recorded()
        running = pool.submit(server.post, "/generate", first)
        await_steps(server, since, copies)
        refused = server.post("/generate", {**first, "stream": is_streamed})
        assert refused.status == 400, refused.body
        assert "again" in str(refused.body)
        time.sleep(2.5)  # SGLang aborts what is left of a stream after two seconds
    assert ends(running.result()) == [("length", 120)] * copies
    later = server.post("/generate", slow("again", 4))  # its request is over
    assert (later.status, later.body["meta_info"]["id"]) == (200, "again")


@on_a_server
def test_after_a_stream_a_later_request_with_its_rid_goes_on(server):
    assert server.stream("/generate", slow("reused", 3)).status == 200

    assert ends(server.post("/generate", slow("reused"))) == [("length", TOKENS)]


@on_each_server
def test_an_administrator_aborts_all(server):
    def act():
        server.post("/abort_request", {"abort_all": True})

    assert {kind for kind, _ in beside(server, act, "one", "two")} == {"abort"}


@on_servers("tokenizer workers")
def test_clients_of_two_workers_that_chose_the_same_rid_do_not_end_each_other(server):
    # One of several tries is refused or ends at another worker than the first request's.
    def act():
        for _ in range(4):
            server.stream("/generate", slow("same", 2_000), leave_after=2)

    assert beside(server, act, "same") == [("length", TOKENS)]
