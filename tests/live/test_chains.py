"""DFLASH, in seconds: ``make test SUITE=drafts`` tests it at length. These tests can fail.

Drafts that know, with all who draft.
"""

from __future__ import annotations

import random

import pytest

from sglang_lp.builtins import (
    AllowedTokensLogitProcessor,
    ForcedSequenceLogitProcessor,
    ScheduledBiasLogitProcessor,
)
from support.models.tiny_model import FREQUENT
from support.oracles.greedy import free, rule
from support.processors.eager import CHAIN
from support.processors.recording import Finishes, Raises, Recorder
from support.servers.asking import body, recorder, tag
from support.servers.configurations import BLIND, on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
on_dflash = on_servers("dflash", always=True)

NO_REPEAT = "DeepseekOCRNoRepeatNGramLogitProcessor"
TOKENS = 30
#: Tokens that DFLASH verifies at once.
BLOCK = 6


def mixed(rng, count):
    """Return requests with processors that depend on every token, and one without."""
    bodies = []
    for i in range(count):
        prompt = [rng.randrange(2, 1024) for _ in range(rng.randint(1, 30))]
        if i % 4 == 0:
            bodies.append((body(prompt, max_new_tokens=TOKENS), free))
        elif i % 4 == 1:
            bodies.append((body(prompt, *CHAIN, max_new_tokens=TOKENS), rule(*CHAIN)))
        else:
            request = recorder(prompt, steering=i % 4 == 2, max_new_tokens=TOKENS)
            params = request["sampling_params"]["custom_params"]
            bodies.append((request, rule(Recorder, params)))
    return bodies


@on_dflash
def test_processors_act_on_every_drafted_token(server, oracle):
    asked = mixed(random.Random(30), 12)
    replies = server.at_once([request for request, _ in asked])
    for (request, edits), reply in zip(asked, replies, strict=True):
        assert reply.status == 200, reply.body
        oracle.check(request["input_ids"], reply.output_ids, edits)
        assert reply.body["meta_info"]["spec_num_correct_drafts"] > 0
    seen = server.records("edit", tag=tag(asked[3][0]))
    answer = replies[3].output_ids
    assert {line["position"] for line in seen} >= {*range(len(answer))}
    assert any(line["fed"] != answer[: line["position"]] for line in seen), "no draft was wrong"


@on_dflash
def test_ends_and_faults_come_at_their_token(server):
    prompt = [*range(300, 309)]
    alone = server.post("/generate", body(prompt, max_new_tokens=TOKENS)).output_ids
    ends, fails, beside = server.at_once(
        [
            body(prompt, Finishes, {"at": 7}, max_new_tokens=TOKENS),
            body(prompt, Raises, {"at": 6}, max_new_tokens=TOKENS),
            body(prompt, max_new_tokens=TOKENS),
        ]
    )
    assert ends.output_ids == alone[:8]
    assert "Raises failed at token 6: " in fails.body["message"]
    assert beside.output_ids == alone


@on_servers("dflash", "eagle chains", "ngram trees, mixed chunks", always=True)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_will_be_forced_is_drafted(server, temperature):
    rng = random.Random(temperature)
    forced = rng.sample(range(300, 1000), 24)  # which no text before has had
    request = body(
        [*range(400, 409)],
        ForcedSequenceLogitProcessor,
        {"token_ids": forced},
        max_new_tokens=24,
        temperature=temperature,
    )
    reply = server.post("/generate", request)
    assert reply.output_ids == forced
    # The first token comes with the prompt, and then as many at once as are verified.
    nodes = server.arguments.get("speculative_num_draft_tokens", BLOCK)
    assert reply.body["meta_info"]["spec_verify_ct"] <= 23 // nodes + 2


@on_servers("dflash", "eagle chains", "ngram trees, mixed chunks", always=True)
@pytest.mark.parametrize("start", [10, 15, 16, 17, 18])
def test_sglang_sees_a_processor_only_in_steps_in_which_it_may_act(server, oracle, start):
    prompt, params = [*range(400, 409)], {"token_ids": [350], "bias": 1000.0, "start": start}
    since = server.record.stat().st_size if server.record.exists() else 0
    request = body(prompt, ScheduledBiasLogitProcessor, params, max_new_tokens=TOKENS)
    output_ids = server.post("/generate", request).output_ids

    oracle.check(prompt, output_ids, rule(ScheduledBiasLogitProcessor, params))
    assert output_ids[start:] == [350] * (TOKENS - start)
    shown = [line["processors"] for line in server.records("verify", since=since)]
    assert not shown[0]
    assert shown[-1]


@on_dflash
def test_sampled_tokens_are_what_a_processor_leaves(server):
    allowed = [*FREQUENT, *range(300, 306)]
    request = body(
        [*range(300, 309)],
        AllowedTokensLogitProcessor,
        {"token_ids": allowed},
        max_new_tokens=TOKENS,
        temperature=0.8,
        n=4,
    )
    replies = server.post("/generate", request).body
    assert len({tuple(reply["output_ids"]) for reply in replies}) > 1
    assert all({*reply["output_ids"]} <= {*allowed} for reply in replies)


@on_servers(BLIND)
def test_the_oracle_finds_tokens_that_were_edited_by_other_drafts(server, oracle):
    wrong = 0
    for request, edits in mixed(random.Random(30), 12):
        reply = server.post("/generate", request)
        try:
            oracle.check(request["input_ids"], reply.output_ids, edits)
        except AssertionError:
            wrong += 1
    assert wrong > 0
