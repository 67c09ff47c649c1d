"""Every endpoint refuses a bad request as a whole, before it dispatches any part."""

from __future__ import annotations

import itertools

import pytest

from sglang_lp import wire
from sglang_lp.builtins import DisallowedTokensLogitsProcessor, ForcedSequenceLogitProcessor
from sglang_lp.server.front.bounds import MAX_ENTRIES
from support.servers.asking import body
from support.servers.configurations import on_servers

#: The second one sends messages between SGLang's processes as msgpack, the first as pickles. The
#: third has several processes that take requests.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    on_servers("default", "no overlap, no radix cache", "tokenizer workers"),
]

FORCED = ForcedSequenceLogitProcessor.to_str()
BANNED = DisallowedTokensLogitsProcessor.to_str()
_numbers = itertools.count()


def generate(prompt):
    return lambda payload, params, copies: {
        **prompt,
        "custom_logit_processor": payload,
        "sampling_params": {"max_new_tokens": 3, "custom_params": params, "n": copies},
    }


def openai(prompt):
    return lambda payload, params, copies: {
        **prompt,
        "model": "tiny",
        "max_tokens": 3,
        "n": copies,
        "custom_logit_processor": payload,
        "custom_params": params,
    }


def routed(path, prompt):
    """Return how a request is written in the form that sglang-router passes on."""
    written = generate(prompt) if path == "/generate" else openai(prompt)

    def write(payload, params, copies):
        if payload is None:
            return written(payload, params, copies)
        whole = wire.fold(payload, params)
        if path == "/generate":
            return written(whole, None, copies)
        return {**written(None, None, copies), "metadata": {"sglang_lp": whole, "user": "7"}}

    return path, write


def vertex(payload, params, copies):
    asked = generate({})(payload, params, copies)
    return {"instances": [{"text": "a"}, {"text": "b"}], "parameters": asked}


CHAT = openai({"messages": [{"role": "user", "content": "a"}]})
#: Endpoint and form of the prompt -> path, and a function that writes the request.
FORMS = {
    "/generate, text": ("/generate", generate({"text": "a"})),
    "/generate, ids": ("/generate", generate({"input_ids": [5]})),
    "/generate, texts": ("/generate", generate({"text": ["a", "b", "c"]})),
    "/generate, lists of ids": ("/generate", generate({"input_ids": [[5], [6], [7]]})),
    "/vertex_generate": ("/vertex_generate", vertex),
    "/v1/completions, text": ("/v1/completions", openai({"prompt": "a"})),
    "/v1/completions, texts": ("/v1/completions", openai({"prompt": ["a", "b", "c"]})),
    "/v1/completions, lists of ids": ("/v1/completions", openai({"prompt": [[5], [6]]})),
    "/v1/chat/completions": ("/v1/chat/completions", CHAT),
    "/invocations": ("/invocations", CHAT),
    "/generate, routed": routed("/generate", {"text": "a"}),
    "/generate, texts, routed": routed("/generate", {"text": ["a", "b", "c"]}),
    "/v1/completions, routed": routed("/v1/completions", {"prompt": "a"}),
    "/v1/completions, texts, routed": routed("/v1/completions", {"prompt": ["a", "b", "c"]}),
    "/v1/chat/completions, routed": routed(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}
    ),
}
#: What must not pass: payload, parameters, number of copies.
REFUSED = {
    "unknown class": (wire.payload_for("os", "abort"), {"token_ids": [5]}, 1),
    "unknown class, copies": (wire.payload_for("os", "abort"), {"token_ids": [5]}, 3),
    "bad parameter": (FORCED, {"token_ids": [1024]}, 1),
    "bad parameter, copies": (FORCED, {"token_ids": [1024]}, 3),
    "entries of all copies": (BANNED, {"token_ids": [5] * (MAX_ENTRIES // 8)}, 9),
    "own key": (FORCED, {"token_ids": [5], "__sglang_reasoning_end_token_ids": [7]}, 1),
    "own key, no processor": (None, {"__sglang_reasoning_end_token_ids": [7]}, 1),
    "own key, no processor, copies": (None, {"__sglang_reasoning_in_grammar": True}, 3),
    "own key that nests": (None, {"__sglang_reasoning_end_token_ids": [[[7]]]}, 1),
    "unknown own key": (None, {"__sglang_anything": 1}, 1),
    "the request itself": (FORCED, {"token_ids": [5], "__req__": {"rid": "another"}}, 1),
}
form = pytest.mark.parametrize("form", FORMS)


def generated_for(server):
    """Return the ids of all requests that have been in a step, but for SGLang's health checks.

    A health check of the server's start-up may reach its step late, on a busy machine.
    """
    # It comes after whatever was dispatched before it.
    rid = f"the last one {next(_numbers)}"
    assert server.post("/generate", {**body([5], max_new_tokens=1), "rid": rid}).status == 200
    stepped = {rid for line in server.records("step") for rid in line["rids"]}
    return {rid for rid in stepped if not rid.startswith(("the last one", "HEALTH_CHECK"))}


@form
def test_nothing_of_a_refused_request_is_dispatched(server, form):
    path, written = FORMS[form]
    before = generated_for(server)

    for why, refused in REFUSED.items():
        request = written(*refused)
        assert server.post(path, request).status == 400, why
        if "vertex" not in path:
            assert server.stream(path, request).status == 400, why

    assert generated_for(server) == before


@pytest.mark.parametrize("prompts", [{"text": ["a", "b", "c"]}, {"input_ids": [[5], [6], [7]]}])
def test_one_of_a_list_refuses_it_all(server, prompts):
    before = generated_for(server)

    for (why, refused), at in itertools.product(REFUSED.items(), range(3)):
        payloads, params = [FORCED] * 3, [{"token_ids": [7, 8, 9]}] * 3
        payloads[at], params[at], copies = refused
        request = {
            **prompts,
            "custom_logit_processor": payloads,
            "sampling_params": [{"custom_params": one} for one in params],
        }
        if copies == 1:
            assert server.post("/generate", request).status == 400, (why, at)
            assert server.stream("/generate", request).status == 400, (why, at)

    assert generated_for(server) == before


@form
def test_what_is_allowed_passes(server, form):
    path, written = FORMS[form]
    params = {"token_ids": [7, 8, 9]}

    assert server.post(path, written(FORCED, params, 2)).status == 200
    assert server.post(path, written(None, {"thinking_budget": -1}, 1)).status == 200
    assert server.post(path, written(None, {"of": "another plugin"}, 1)).status == 400


# With msgpack a nested value raised in the scheduler's receive loop, with and without a processor.
@form
@pytest.mark.parametrize("payload", [None, FORCED])
def test_a_value_that_does_not_travel_ends_no_scheduler(server, form, payload):
    path, written = FORMS[form]
    request = written(payload, {"token_ids": [7], "nested": [[[1]]]}, 1)

    assert server.post(path, request).status in {200, 400}
    assert server.stream(path, request).status in {200, 400} or "vertex" in path
    assert server.is_healthy()
    assert server.post("/generate", body([5], max_new_tokens=1)).status == 200
