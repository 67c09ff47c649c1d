"""LoRA adapters: each row keeps its own weights and its own processor, whatever comes and goes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import pytest

from sglang_lp.builtins import (
    BadWordsLogitProcessor,
    DeepseekOCRNoRepeatNGramLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from support.models import lora_models
from support.oracles.greedy import Oracle, free, rule
from support.processors.recording import Raises, Recorder
from support.servers.asking import body, recorder, tag
from support.servers.configurations import ADAPTED, on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers(*ADAPTED)]

#: One for all, so that what one adapter left in the cache would show in another's answer.
PROMPT = [*range(300, 340)]
TOKENS = 30
#: Running when something happens: four seconds at least.
LONG = {"seconds": 0.02, "max_new_tokens": 200}
#: Every token ends a line of thoughts, so that the budget is used up at once.
THINKING = {
    "thinking_budget": 9,
    "thinking_start_token_id": PROMPT[-1],
    "thinking_end_token_id": 500,
    "new_line_token_id": 501,
}
KINDS = [
    None,
    (DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 1, "window_size": 100}),
    (BadWordsLogitProcessor, {"token_ids": [*range(2, 600)], "lengths": [1] * 598}),
    (ThinkingBudgetLogitProcessor, THINKING),
    (Recorder, {"tag": "lora", "steering": True}),
]


@pytest.fixture(scope="session")
def adapters(server, tmp_path_factory):
    """Return adapters by name, loaded while the server runs."""
    made = {
        name: lora_models.make(
            server.arguments["model_path"], tmp_path_factory.mktemp("lora") / name, seed
        )
        for seed, name in enumerate(("one", "other", "third"))
    }
    for name, adapter in made.items():
        load(server, name, adapter)
    return made


@pytest.fixture(scope="session")
def oracles(oracle, adapters):
    """Return the oracle of the base model, under ``None``, and of each adapter."""
    return {None: oracle} | {name: Oracle(made.merged) for name, made in adapters.items()}


def told(server, path, **asked):
    reply = server.post(path, asked)
    assert reply.status == 200, reply.body
    assert reply.body["success"], reply.body


def load(server, name, adapter):
    told(server, "/load_lora_adapter", lora_name=name, lora_path=str(adapter.path))


def unload(server, name):
    told(server, "/unload_lora_adapter", lora_name=name)


def adapted(asked, name):
    return asked if name is None else {**asked, "lora_path": name}


def check(oracle, asked, reply, kind):
    assert reply.status == 200, reply.body
    assert len(reply.output_ids) == asked["sampling_params"]["max_new_tokens"]
    oracle.check(asked["input_ids"], reply.output_ids, rule(*kind) if kind else free)


def test_rows_of_one_batch_have_their_own_weights_and_processors(server, oracles):
    # As many adapters as fit: a batch of these rows is one that SGLang can make.
    rows = [(name, kind) for name in (None, "one", "other") for kind in KINDS]
    bodies = [
        adapted(body(PROMPT, *(kind or ()), max_new_tokens=TOKENS), name) for name, kind in rows
    ]
    replies = server.at_once(bodies)

    for (name, kind), asked, reply in zip(rows, bodies, replies, strict=True):
        check(oracles[name], asked, reply, kind)
    if "speculative_algorithm" not in server.arguments:  # no record has a verify step's rows
        ids = {reply.body["meta_info"]["id"] for reply in replies}
        assert any(ids <= {*step["rids"]} for step in server.records("step"))


@pytest.mark.parametrize("name", [None, "one"])
def test_a_running_request_does_not_notice_what_is_loaded_and_unloaded(
    server, adapters, oracles, name
):
    asked = adapted(recorder(PROMPT, steering=True, **LONG), name)
    short = body(PROMPT, *KINDS[1], max_new_tokens=TOKENS)
    since = server.recorded()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, "/generate", asked)
        while not server.records("edit", since=since, tag=tag(asked)):
            time.sleep(0.01)
        load(server, "new", adapters["third"])
        reply = server.post("/generate", adapted(short, "new"))
        unload(server, "new")
        assert not running.done(), "it came too late to disturb anything"
        long = running.result()

    check(oracles["third"], short, reply, KINDS[1])
    check(oracles[name], asked, long, (Recorder, {"steering": True}))


def test_an_adapter_that_is_unloaded_serves_the_requests_it_has(server, adapters, oracles):
    load(server, "leaving", adapters["other"])
    asked = adapted(recorder(PROMPT, steering=True, **LONG), "leaving")
    since = server.recorded()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.post, "/generate", asked)
        while not server.records("edit", since=since, tag=tag(asked)):
            time.sleep(0.01)
        unload(server, "leaving")
        long = running.result()

    check(oracles["other"], asked, long, (Recorder, {"steering": True}))


def test_a_request_that_is_refused_or_fails_does_not_hold_its_adapter(server, adapters):
    load(server, "held", adapters["other"])
    refused = adapted(
        body(PROMPT, BadWordsLogitProcessor, {"token_ids": [1 << 30], "lengths": [1]}), "held"
    )
    listed = {**refused, "input_ids": [PROMPT, PROMPT]}
    failing = adapted(body(PROMPT, Raises, {"at": 2}), "held")
    unknown = adapted(body([*PROMPT, 1 << 20]), "held")

    assert server.post("/generate", refused).status == HTTPStatus.BAD_REQUEST
    assert server.post("/generate", listed).status == HTTPStatus.BAD_REQUEST
    assert server.post("/generate", unknown).status == HTTPStatus.BAD_REQUEST
    assert server.stream("/generate", refused).status == HTTPStatus.BAD_REQUEST
    assert server.post("/generate", failing).status == HTTPStatus.INTERNAL_SERVER_ERROR
    # SGLang waits until no request uses the adapter.
    unload(server, "held")


def test_a_name_that_is_loaded_anew_gets_the_new_weights(server, adapters, oracles):
    asked = adapted(body(PROMPT, *KINDS[1], max_new_tokens=TOKENS), "renewed")
    for name in ("one", "other", "one"):
        load(server, "renewed", adapters[name])
        check(oracles[name], asked, server.post("/generate", asked), KINDS[1])
        unload(server, "renewed")
