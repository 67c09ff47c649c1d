"""SGLang's own fields on a real server: 400 with the field's name, and the neighbours go on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sglang.srt.managers.io_struct import GenerateReqInput

from support.plugins.probe import OUT_OF_RANGE
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]

VOCAB = 1024
#: Fields of the installed SGLang.
KNOWN = {*GenerateReqInput.__dataclass_fields__}
SHORT = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
NEIGHBOUR = {
    "input_ids": [5, 6],
    "sampling_params": {**SHORT, "max_new_tokens": 24},
    "return_logprob": True,
}


def generate(sampling=None, **more):
    given = {} if {"text", "input_ids"} & more.keys() else {"input_ids": [5]}
    return "/generate", {**given, "sampling_params": {**SHORT, **(sampling or {})}, **more}


def chat(**more):
    messages = [{"role": "user", "content": "a"}]
    return "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 4, **more}


def completion(**more):
    return "/v1/completions", {"model": "tiny", "prompt": [5], "max_tokens": 4, **more}


#: What a client sends, and the field that the answer names.
REFUSED = (
    (generate({"temperature": 1e300}), "temperature"),
    (generate({"repetition_penalty": 1e-44}), "repetition_penalty"),
    (generate({"logit_bias": {"5": 1e39}, "top_k": 5}), "logit_bias"),
    (generate({"logit_bias": {str(token): -1e39 for token in range(VOCAB)}}), "logit_bias"),
    (generate({"top_k": 2**31}), "top_k"),
    (generate({"stop_token_ids": [VOCAB], "min_new_tokens": 2}), "stop_token_ids"),
    (generate({"stop_token_ids": [*range(VOCAB)], "min_new_tokens": 2}), "min_new_tokens"),
    (generate({"regex": "x", "min_new_tokens": 2, "temperature": 1}), "min_new_tokens"),
    (generate({"stop_regex": "("}), "stop_regex"),
    (generate({"stop_regex": r"^(\s?\w?.?)+\x01$"}), "stop_regex"),
    (generate({"n": 1_000}), "n"),
    (generate(text=""), "text"),
    (generate(text="", stream=True), "text"),
    (generate(text=[""]), "text"),
    (generate(input_ids=[[]]), "input_ids"),
    (generate(rid=["a"]), "rid"),
    (generate(return_logprob=True, top_logprobs_num=VOCAB + 1), "top_logprobs_num"),
    (
        generate(
            input_ids=[5] * 600,
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=VOCAB,
            return_text_in_logprobs=True,
        ),
        "logprob_start_len",
    ),
    (generate({"n": 64}, return_logprob=True, top_logprobs_num=VOCAB), "top_logprobs_num"),
    (generate(rid="HEALTH_CHECK_1"), "rid"),
    (chat(rid="HEALTH_CHECK_1"), "rid"),
    (generate(session_params={"id": 5}), "session_params"),
    (generate(session_params={"id": "a", "replace": True}), "session_params"),
    (generate(token_indices_to_pool=[10**9]), "token_indices_to_pool"),
    (generate(positional_embed_overrides=[]), "positional_embed_overrides"),
    (("/generate", {"input_ids": [5], "sampling_params": [SHORT]}), "sampling_params"),
    (chat(temperature=1e39), "temperature"),
    (chat(logprobs=True, top_logprobs=2_000), "top_logprobs"),
    (chat(stop_token_ids=[VOCAB], min_tokens=2, stream=True), "stop_token_ids"),
    (chat(response_format={"type": "json_object"}, min_tokens=2), "min_tokens"),
    (completion(logprobs=2_000), "logprobs"),
    (completion(prompt=[2**63]), "prompt"),
    (("/v1/score", {"query": [], "items": [[]], "label_token_ids": [1]}), "items"),
    (("/v1/score", {"query": [1], "items": [[2]] * 3_000, "label_token_ids": [1]}), "items"),
    (("/tokenize", {"model": "tiny", "prompt": "a" * 2_000_000}), "prompt"),
    (
        (
            "/parse_function_call",
            {"text": "\n" * 1_000, "tools": [], "tool_call_parser": "dots"},
        ),
        "text",
    ),
    (("/separate_reasoning", {"text": "a" * 70_000, "reasoning_parser": "muse"}), "text"),
    (("/detokenize", {"model": "tiny", "tokens": [-1]}), "tokens"),
    (
        (
            "/vertex_generate",
            {
                "instances": [{"input_ids": [5]}],
                "parameters": {"sampling_params": {"is_normalized": True, "temperature": 0}},
            },
        ),
        "is_normalized",
    ),
)


def error_of(reply):
    body = reply.body
    return body.get("error", body)


@pytest.mark.parametrize(
    ("sent", "field"), REFUSED, ids=[f"{field}-{at}" for at, (_, field) in enumerate(REFUSED)]
)
def test_a_field_out_of_range_is_http_400_with_its_name_and_our_code(server, sent, field):
    if sent[0] == "/generate" and not sent[1].keys() <= KNOWN:
        pytest.skip(f"this SGLang has no {field}")
    reply = server.post(*sent)

    assert reply.status == 400, reply
    error = error_of(reply)
    assert (error["param"], error["sglang_lp_code"]) == (field, "invalid_request")
    assert error["message"].startswith(f"{field}: ")


# The hunt's: a token of it took longer than the one before, for two minutes in all.
@pytest.mark.parametrize("make", [generate, chat], ids=["generate", "chat"])
def test_a_grammar_that_takes_the_schedulers_time_ends_its_own_request(server, make):
    fields = {"regex": r"^(\s?\w?.?)+\x01$", "ignore_eos": True}
    length = {"max_new_tokens": 1_000} if make is generate else {"max_tokens": 1_000}
    sent = make(fields | length) if make is generate else make(**fields, **length)
    alone = server.post("/generate", NEIGHBOUR).body["output_ids"]
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(server.post, *sent)
        beside = server.post("/generate", NEIGHBOUR)
    reply = slow.result()

    assert reply.status == 400, reply
    error = error_of(reply)
    assert (error["param"], error["sglang_lp_code"]) == ("regex", "invalid_request")
    assert error["message"].startswith("regex: expected a grammar that takes at most 1 ms")
    assert beside.body["output_ids"] == alone


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_a_field_out_of_range_ends_its_own_request_in_the_scheduler(server, name):
    _, others = OUT_OF_RANGE[name]
    if not others.keys() <= KNOWN:
        pytest.skip(f"this SGLang has no {name}")
    alone = server.post("/generate", NEIGHBOUR).body["output_ids"]
    with ThreadPoolExecutor() as pool:
        beside = pool.submit(server.post, "/generate", NEIGHBOUR)
        refused = server.post("/generate", generate(rid=f"{name}:1")[1])

    assert refused.status == 400, refused
    assert error_of(refused)["param"] == name.partition(" ")[0]
    assert beside.result().body["output_ids"] == alone


def test_a_session_in_which_sglang_fails_ends_no_scheduler(server):
    session = server.post("/open_session", {"capacity_of_str_len": 9}).body

    def in_session(name, **more):
        return server.post(*generate(rid=name, session_params={"id": session, **more}))

    assert in_session("first").status == 200
    for _ in range(2):  # SGLang keeps both under one id, and deletes it twice
        assert in_session("again", rid="first").status == 200
    failed = in_session("last", rid="first", replace=True)

    assert (failed.status, error_of(failed)["sglang_lp_code"]) == (400, "invalid_request")
    assert server.post(*generate()).status == 200


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 3e38},
        {"logit_bias": {"5": 1e30}, "temperature": 1e-6},
        {"logit_bias": {str(token): -1e30 for token in range(VOCAB)}, "temperature": 1},
        {"repetition_penalty": 1e-6, "temperature": 1e-6},
        {"stop_token_ids": [*range(VOCAB - 1)], "min_new_tokens": 2, "temperature": 1},
        {"stop_regex": r"\d{1,16}"},
    ],
    ids=str,
)
def test_the_ends_of_the_ranges_are_answered(server, sampling):
    reply = server.post(*generate(sampling))

    assert reply.status == 200, reply
