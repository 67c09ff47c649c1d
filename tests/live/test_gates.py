"""Every request is checked twice: in the HTTP process, and again in the scheduler."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_lp import wire
from sglang_lp.builtins import (
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    MinLengthLogitProcessor,
)
from support.models.tiny_model import FREQUENT
from support.plugins.probe import SMUGGLED
from support.servers.asking import body
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]

FORCED = [7, 8, 9]

#: Mistakes of a client: the payload, the parameters, and a part of the error message.
REFUSED = {
    "remote code": (SMUGGLED["remote code"][0], {}, "expected a class that this server allows"),
    "bad hex": ('{"callable": "zz"}', {}, "lower-case hex"),
    "duplicate key": ('{"callable": "80", "callable": "80"}', {}, "that key and no other"),
    "unknown class": (wire.payload_for("os", "abort"), {}, "ask the operator to allow it"),
    "unknown name": ("NoSuchProcessor", {}, "did you mean"),
    "missing parameter": (MinLengthLogitProcessor.to_str(), {}, "required, but not given"),
    "unknown parameter": (
        ForcedSequenceLogitProcessor.to_str(),
        {"token_id": 3},
        "did you mean 'token_ids'",
    ),
    "wrong type": (ForcedSequenceLogitProcessor.to_str(), {"token_ids": "3"}, "expected a list"),
    "outside the vocabulary": (
        ForcedSequenceLogitProcessor.to_str(),
        {"token_ids": [1024]},
        "0 to 1023, got 1024",
    ),
}
mistake = pytest.mark.parametrize("name", REFUSED)


def request(payload, params, **sampling):
    sampling = {"temperature": 0, "max_new_tokens": 8, "custom_params": params, **sampling}
    return {"input_ids": [5], "sampling_params": sampling, "custom_logit_processor": payload}


def openai(name):
    payload, params, _ = REFUSED[name]
    return {
        "model": "tiny",
        "max_tokens": 8,
        "temperature": 0,
        "custom_logit_processor": payload,
        "custom_params": params,
    }


def said(reply):
    return str(reply.body)


@mistake
def test_generate_answers_400_and_says_what_is_wrong(server, name):
    payload, params, why = REFUSED[name]
    reply = server.post("/generate", request(payload, params))
    assert (reply.status, why in said(reply)) == (400, True), reply


@mistake
def test_a_streaming_request_is_answered_400_before_anything_is_generated(server, name):
    payload, params, why = REFUSED[name]
    reply = server.stream("/generate", request(payload, params))
    assert (reply.status, why in said(reply)) == (400, True), reply


@mistake
def test_chat_completions_answer_400(server, name):
    messages = [{"role": "user", "content": "?"}]
    reply = server.post("/v1/chat/completions", {**openai(name), "messages": messages})
    assert (reply.status, REFUSED[name][2] in said(reply)) == (400, True), reply


@mistake
def test_completions_answer_400(server, name):
    reply = server.post("/v1/completions", {**openai(name), "prompt": "?"})
    assert (reply.status, REFUSED[name][2] in said(reply)) == (400, True), reply


def test_one_bad_payload_in_a_batch_refuses_the_batch(server):
    good = ForcedSequenceLogitProcessor.to_str()
    batch = {
        "input_ids": [[5], [6]],
        "custom_logit_processor": [good, REFUSED["remote code"][0]],
        "sampling_params": [
            {"temperature": 0, "max_new_tokens": 3, "custom_params": {"token_ids": FORCED}}
        ]
        * 2,
    }
    assert server.post("/generate", batch).status == 400
    batch["custom_logit_processor"] = [good, None]
    batch["sampling_params"][1] = {"max_new_tokens": 3}
    reply = server.post("/generate", batch)
    assert [reply.status, reply.body[0]["output_ids"]] == [200, FORCED]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [[-5], [5, 1 << 40], [[5], [6, -1]], [[5], [1 << 40]]])
def test_a_prompt_of_token_ids_that_the_model_does_not_have_is_refused(server, prompt, stream):
    sent = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 1}}
    reply = server.stream("/generate", sent) if stream else server.post("/generate", sent)
    assert (reply.status, "input_ids: expected token ids" in said(reply)) == (400, True), reply
    assert server.post("/generate", {**sent, "input_ids": [5]}).status == 200


@pytest.mark.parametrize(
    "payload",
    [
        "ForcedSequenceLogitProcessor",
        "sglang_lp.builtins:ForcedSequenceLogitProcessor",
        ForcedSequenceLogitProcessor.to_str(),
        ForcedSequenceLogitProcessor.to_str().replace(" ", "\n\t"),
    ],
)
def test_every_spelling_of_an_allowed_class_runs_it(server, payload):
    reply = server.post("/generate", request(payload, {"token_ids": FORCED}, max_new_tokens=3))
    assert reply.output_ids == FORCED


@pytest.mark.parametrize("name", SMUGGLED)
def test_what_reaches_the_scheduler_another_way_ends_its_own_request(server, name):
    good = body([5], DisallowedTokensLogitsProcessor, {"token_ids": [FREQUENT[0]]})
    before = server.post("/generate", good).output_ids
    bad = body([5]) | {"rid": f"{name}: {id(good)}"}
    if name == "beam search":
        bad["sampling_params"]["beam_width"] = 2
    with ThreadPoolExecutor(2) as pool:
        smuggled = pool.submit(server.post, "/generate", bad)
        beside = pool.submit(server.post, "/generate", good)
    assert smuggled.result().status == 400, smuggled.result()
    assert beside.result().output_ids == before
    assert server.is_healthy()
    assert not Path(f"{server.record}.code-has-run").exists()


def test_hostile_requests_by_the_hundred_leave_good_ones_as_they_are(server):
    good = [body([300 + i, 7], max_new_tokens=60) for i in range(8)]
    calm = [reply.output_ids for reply in server.at_once(good)]
    hostile = [request(payload, params) for payload, params, _ in REFUSED.values()] * 40
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(lambda: [server.post("/generate", one).status for one in hostile])
        while not refused.done():
            assert [reply.output_ids for reply in server.at_once(good)] == calm
    assert set(refused.result()) == {400}
