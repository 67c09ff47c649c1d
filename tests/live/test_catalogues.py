"""Answers out of a catalogue, on real servers that schedule in different ways."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from sglang_lp.builtins import CatalogueLogitProcessor
from sglang_lp.catalogue.file import save
from support.catalogues import node_after, served_index
from support.models.tiny_model import EOS, FREQUENT
from support.oracles.greedy import rule
from support.servers.asking import body
from support.servers.configurations import on_servers

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    on_servers("default", "squeezed", "ngram trees, mixed chunks", "eagle chains", "two ranks"),
]

INDEX = served_index()
ITEMS = [
    {"catalogue": "items"},
    {"catalogue": "items", "max_items": 4},
    {"catalogue": "items", "subset": ["even", "few"], "max_items": 3},
    {"catalogue": "items", "only": [f"item {n}" for n in range(100, 140)], "max_items": 2},
    {"catalogue": "items", "exclude": [f"item {n}" for n in range(300)], "max_items": 3},
]
#: Text around items: one of these tokens comes every few tokens.
AROUND = [
    {"catalogue": "items", "trigger_token_ids": [FREQUENT[0]], "max_items": 1000},
    {"catalogue": "items", "trigger_token_ids": [FREQUENT[1]], "max_items": 2},
    {"catalogue": "items", "max_items": 2, "ends_answer": False},
]


def ask(params, prompt, **sampling):
    return body(prompt, CatalogueLogitProcessor, params, **sampling)


def prompts(count):
    rng = random.Random(count)
    return [[rng.randrange(2, 1024) for _ in range(rng.randint(1, 40))] for _ in range(count)]


def allowed(params):
    """Return the tokens of the items that a request may get, by their ids."""
    ids = {f"item {n}" for n in range(400)} - {*params.get("exclude", ())}
    if "only" in params:
        ids &= {*params["only"]}
    if "subset" in params:
        ids &= {f"item {n}" for n in (0, 2, 4)}
    return {one: INDEX.tokens_of(INDEX.rank(node_after(INDEX, tokens_of(one)))) for one in ids}


def tokens_of(item):
    (rank,), _ = INDEX.ranks_of([item])
    return INDEX.tokens_of(int(rank))


def told(reply):
    return reply.body["meta_info"]["sglang_lp"]["catalogue"]


def test_greedy_answers_are_those_of_the_rule_with_the_true_history(server, oracle):
    asked = [(params, prompt) for params in ITEMS + AROUND for prompt in prompts(3)]
    replies = server.at_once([ask(*one) for one in asked], stagger=0.01)

    for (params, prompt), reply in zip(asked, replies, strict=True):
        assert reply.status == 200, reply.body
        oracle.check(prompt, reply.output_ids, rule(CatalogueLogitProcessor, params))


def test_samples_are_items_that_the_request_may_get_and_the_report_names_them(server):
    asked = [(params, prompt) for params in ITEMS for prompt in prompts(3)]
    replies = server.at_once([ask(*one, temperature=2.0) for one in asked], stagger=0.01)

    for (params, _), reply in zip(asked, replies, strict=True):
        assert reply.status == 200, reply.body
        found, rest = told(reply), reply.output_ids
        assert (found["name"], found["version"]) == ("items", INDEX.version)
        assert len(found["items"]) == params.get("max_items", 1)
        for shared in found["items"]:
            tokens = {tuple(allowed(params)[one]) for one in shared if one in allowed(params)}
            assert tokens == {tuple(rest[:3])}
            rest = rest[3:]
        assert rest == []
        assert reply.finish_reason["type"] == "stop"
        assert reply.finish_reason["matched"].startswith("catalogue: ")


def test_copies_differ_and_each_is_an_item(server):
    (prompt,) = prompts(1)
    replies = server.post("/generate", ask(ITEMS[0], prompt, temperature=2.0, n=16)).body

    assert all(tuple(one["output_ids"]) in map(tuple, allowed({}).values()) for one in replies)
    assert len({tuple(one["output_ids"]) for one in replies}) > 1


def test_a_stream_names_the_items_in_its_last_event(server):
    (prompt,) = prompts(1)
    streamed = server.stream("/generate", ask(ITEMS[1], prompt))

    assert told(streamed) == told(server.post("/generate", ask(ITEMS[1], prompt)))
    assert len(told(streamed)["items"]) == 4


def test_an_answer_that_was_cut_goes_on_with_its_item(server):
    (prompt,) = prompts(1)
    whole = server.post("/generate", ask(ITEMS[1], prompt))
    for cut in (1, 3, 5):
        params = {**ITEMS[1], "resumed_tokens": cut}
        rest = server.post("/generate", ask(params, [*prompt, *whole.output_ids[:cut]]))

        assert rest.status == 200, rest.body
        assert rest.output_ids == whole.output_ids[cut:]
        assert told(rest) == told(whole)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"catalogue": "others"}, "expected a catalogue of this server, which has 'items'"),
        ({"catalogue": "items", "subset": ["odd"]}, "which has 'even', 'few', got 'odd'"),
        ({"catalogue": "items", "only": ["no item"]}, "rules that leave an item of items"),
        ({"catalogue": "items", "only": [5]}, "item ids, which are texts"),
    ],
)
def test_what_cannot_hold_is_refused_at_admission(server, params, message):
    reply = server.post("/generate", ask(params, [5]))

    assert reply.status == 400
    assert message in str(reply.body)


def test_tokens_of_no_item_are_the_fault_of_the_client_that_resumes_them(server):
    reply = server.post("/generate", ask({**ITEMS[0], "resumed_tokens": 1}, [5, EOS]))

    assert reply.status == 400
    assert "expected a token that leads to an item that this request may get, got 1" in str(
        reply.body
    )
    assert server.is_healthy()


def version_of(server):
    return told(server.post("/generate", ask(ITEMS[0], [5])))["version"]


@contextmanager
def replaced(server, index):
    """Put another catalogue in the place of the server's in the block."""
    path = Path(server.variables["SGLANG_LP_POLICY"]).with_name("items.cat")
    save(index, path)
    try:
        yield
    finally:
        save(INDEX, path)
        until(lambda: version_of(server) == INDEX.version)


def until(done, seconds=30):
    """Return how long it took until something was so."""
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < seconds
        time.sleep(0.05)
    return time.monotonic() - began


def test_a_new_version_is_taken_up_while_running_answers_keep_theirs(server):
    newer = served_index(1)
    longest = ask({"catalogue": "items", "max_items": 100}, [5], max_new_tokens=300)
    with ThreadPoolExecutor() as pool:
        running = [pool.submit(server.post, "/generate", longest) for _ in range(6)]
        if not server.arguments.get("speculative_algorithm"):
            searched = server.post("/generate", ask(AROUND[2], [5], beam_width=3))
            assert searched.status == 200, searched.body
        time.sleep(0.3)
        with replaced(server, newer):
            if server.arguments.get("tp_size", 1) > 1:  # ranks keep the version they began with
                time.sleep(2)
                assert version_of(server) == INDEX.version
                return
            until(lambda: version_of(server) == newer.version)
            after = [server.post("/generate", ask(params, [5])) for params in ITEMS]
        replies = [one.result() for one in running] + after

    indexes = {INDEX.version: INDEX, newer.version: newer}
    for reply in replies:
        assert reply.status == 200, reply.body
        index, tokens = indexes[told(reply)["version"]], reply.output_ids
        found = [
            index.rank(node_after(index, tokens[at : at + 3])) for at in range(0, len(tokens), 3)
        ]
        assert [index.ids_of(rank) for rank in found] == told(reply)["items"]
    assert {told(reply)["version"] for reply in replies} == {*indexes}


def test_a_broken_file_changes_nothing_and_is_said(server):
    if server.arguments.get("tp_size", 1) > 1:
        return
    path = Path(server.variables["SGLANG_LP_POLICY"]).with_name("items.cat")
    whole = path.read_bytes()
    path.write_bytes(whole[:-4096])
    try:
        until(lambda: "it was cut or is still being copied" in server.log_text())
        assert version_of(server) == INDEX.version
    finally:
        path.write_bytes(whole)
