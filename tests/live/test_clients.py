"""The requests of clients as they are sent, each on a real server."""

from __future__ import annotations

import json

import anthropic
import httpx
import openai
import pytest

from sglang_lp.client import attach
from sglang_lp.wire.names import HEADER
from support.servers.asking import openai_client
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

THINK = "ThinkingBudgetLogitProcessor"
MESSAGES = [{"role": "user", "content": "#"}]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def post(server, path, body):
    return httpx.post(server.url + path, json=body, trust_env=False, timeout=120)


def body_for(server, path, **fields):
    """Return the body of a request to an endpoint, with the name of the served model."""
    if path == "/generate":
        return {**ENDPOINTS[path], **fields}
    models = httpx.get(server.url + "/v1/models", trust_env=False, timeout=120)
    return {"model": models.json()["data"][0]["id"], **ENDPOINTS[path], **fields}


def generate(params, **fields):
    """Return a body as Dynamo and LocalAI give it to ``Engine`` and ``/generate``."""
    return {
        "input_ids": [4, 9],
        "sampling_params": {"temperature": 0, "max_new_tokens": 12, "custom_params": params},
        **fields,
    }


def chat(params, **fields):
    return {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 12,
        "custom_params": params,
        **fields,
    }


@on_servers("reasoning")
@pytest.mark.parametrize("stream", [False, True])
def test_a_budget_without_a_processor_is_a_budget(server, stream):
    for path, body in (("/generate", generate), (CHAT, chat)):
        asked = post(server, path, body({"thinking_budget": 5}, stream=stream))
        assert asked.status_code == 200, asked.text
        assert asked.headers[HEADER] == THINK


@on_servers("default")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"thinking_budget": 5}, "expected one known pair of thinking delimiters"),
        ({"thinking_budget": "5"}, "thinking_budget of ThinkingBudgetLogitProcessor"),
        ({"thinking_budgets": 5}, "did you mean 'thinking_budget'?"),
        ({"words": ["x"]}, "takes 'words'; name its processor in custom_logit_processor"),
    ],
)
def test_parameters_that_nothing_takes_are_refused(server, params, why, stream):
    for path, body in (("/generate", generate), (CHAT, chat)):
        refused = post(server, path, body(params, stream=stream))
        assert refused.status_code == 400
        assert why in refused.json().get("message", refused.text)
    several = generate(params, text=["a", "b"])
    del several["input_ids"]
    assert server.post("/generate", several).status == 400


# Fields in the wrong place, and names that are nearly right


NEARLY = [
    ("custom_logits_processor", "BadWordsLogitProcessor", "did you mean 'custom_logit_processor'"),
    ("logit_processor", "BadWordsLogitProcessor", "did you mean 'custom_logit_processor'"),
    ("extra_body", {"custom_params": {"thinking_budget": 4}}, "an argument of the openai client"),
    ("custom_logit_processor", "BadWords", "did you mean 'BadWordsLogitProcessor'"),
]
ENDPOINTS = {
    "/generate": {"text": "a"},
    CHAT: {"messages": MESSAGES, "max_tokens": 3},
    COMPLETION: {"prompt": "a", "max_tokens": 3},
    "/v1/responses": {"input": "a", "max_output_tokens": 8},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 3},
}


@on_servers("default")
@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(("name", "value", "why"), NEARLY)
def test_what_is_nearly_right_is_refused_with_what_is_right(server, path, name, value, why):
    for stream in (False, True):
        body = body_for(server, path, **{name: value}, stream=stream)
        refused = post(server, path, body)
        assert why in refused.text
        assert refused.status_code == 400


@on_servers("default")
@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_field_in_the_wrong_place_is_refused_with_the_right_one(server, path):
    wrong = {"custom_params": {"words": ["a"]}}
    wrong = wrong if path == "/generate" else {"sampling_params": wrong}
    why = "in sampling_params on /generate" if path == "/generate" else "at the top of the body"
    for stream in (False, True):
        body = body_for(server, path, **wrong, stream=stream)
        refused = post(server, path, body)
        assert (refused.status_code, why in refused.text) == (400, True), refused.text


# The usual fields where SGLang's types have none


@on_servers("default")
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_a_processor_is_taken_where_sglangs_types_drop_it(server, path):
    forced = {
        "custom_logit_processor": "ForcedSequenceLogitProcessor",
        "custom_params": {"text": "xyz"},
    }
    body = body_for(server, path, **forced)
    whole = post(server, path, body)
    assert whole.status_code == 200, whole.text
    assert whole.headers[HEADER] == "ForcedSequenceLogitProcessor"
    assert "xyz" in whole.text
    stream = post(server, path, {**body, "stream": True})
    assert stream.headers[HEADER] == "ForcedSequenceLogitProcessor"
    wrong = post(server, path, {**body, "custom_params": {"text": 5}})
    assert wrong.status_code == 400
    twice = post(server, path, {**body, "metadata": {"sglang_lp": "LoopBreakerLogitProcessor"}})
    assert twice.status_code == 400
    assert "expected one processor" in twice.text


# Other engines' fields


BAD = {"bad_words": ["a"]}
#: What clients of vLLM and llama.cpp, or of Transformers' and TensorRT-LLM's fields, send.
ENGINE_FIELDS = {
    "bad_words": (BAD, "BadWordsLogitProcessor"),
    "allowed_token_ids": ({"allowed_token_ids": [300, 301]}, "AllowedTokensLogitProcessor"),
    "no_repeat_ngram_size": (
        {"no_repeat_ngram_size": 1},
        "DeepseekOCRNoRepeatNGramLogitProcessor",
    ),
    "repetition_detection": (
        {"repetition_detection": {"max_pattern_size": 4, "min_count": 2}},
        "LoopBreakerLogitProcessor",
    ),
    "top_n_sigma": ({"top_n_sigma": 1.5}, "TopNSigmaLogitProcessor"),
}
OPENAI = [CHAT, COMPLETION, "/v1/responses", "/v1/messages"]


@on_servers("default")
@pytest.mark.parametrize("path", OPENAI)
@pytest.mark.parametrize("field", ENGINE_FIELDS)
def test_a_field_of_another_engine_is_the_rule_that_it_means(server, path, field):
    fields, name = ENGINE_FIELDS[field]
    for stream in (False, True):
        answer = post(server, path, body_for(server, path, **fields, stream=stream))
        assert answer.status_code == 200, answer.text
        assert answer.headers[HEADER] == name
    chained = body_for(
        server,
        path,
        **fields,
        custom_logit_processor="MinLengthLogitProcessor",
        custom_params={"min_tokens": 2},
    )
    assert post(server, path, chained).headers[HEADER] == f"MinLengthLogitProcessor, {name}"
    wrong = post(server, path, body_for(server, path, **{field: "x"}))
    assert wrong.status_code == 400
    assert f"{field}: expected " in wrong.text


@on_servers("default")
def test_allowed_tokens_and_repetitions_are_kept_to_in_every_copy(server):
    body = body_for(
        server,
        COMPLETION,
        prompt="a b",
        n=2,
        temperature=1,
        max_tokens=12,
        return_token_ids=True,
        return_meta_info=True,
        allowed_token_ids=[300],
    )
    looping = {"repetition_detection": {"max_pattern_size": 1, "min_count": 3}}

    for choice in post(server, COMPLETION, body).json()["choices"]:
        assert set(choice["token_ids"]) == {300}
        assert choice["meta_info"]["sglang_lp"]["processors"] == ["AllowedTokensLogitProcessor"]
    for choice in post(server, COMPLETION, {**body, **looping}).json()["choices"]:
        assert choice["finish_reason"] == "stop"
        assert len(choice["token_ids"]) == 4  # the token that is sampled then


@on_servers("default")
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_a_minimum_is_kept_where_sglang_has_no_field_for_it(server, path):
    answer = post(server, path, body_for(server, path, min_tokens=2))
    assert answer.headers[HEADER] == "MinLengthLogitProcessor"
    chat = post(server, CHAT, body_for(server, CHAT, min_tokens=2))
    assert chat.headers[HEADER] == "none"


@on_servers("default")
def test_the_openai_client_sends_the_fields_as_extra_body(server):
    with openai_client(server.url) as client:
        model = client.models.list().data[0].id
        asked = {"model": model, "messages": MESSAGES, "max_tokens": 3}
        for fields, name in ENGINE_FIELDS.values():
            raw = client.chat.completions.with_raw_response.create(**asked, extra_body=fields)
            assert raw.headers[HEADER] == name
            raw = client.responses.with_raw_response.create(
                model=model, input="a", max_output_tokens=3, extra_body=fields
            )
            assert raw.headers[HEADER] == name


@on_servers("default")
def test_the_anthropic_client_sends_the_fields_as_extra_body(server):
    transport = anthropic.DefaultHttpxClient(trust_env=False)
    forced = attach("ForcedSequenceLogitProcessor", text="xyz")
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, http_client=transport
    ) as client:
        for fields, name in (
            ENGINE_FIELDS["bad_words"],
            (forced.extra_body(), "ForcedSequenceLogitProcessor"),
            (forced.extra_body(routed=True), "ForcedSequenceLogitProcessor"),
        ):
            raw = client.messages.with_raw_response.create(
                model="tiny", messages=MESSAGES, max_tokens=3, extra_body=fields
            )
            assert raw.headers[HEADER] == name
        with pytest.raises(anthropic.BadRequestError, match="bad_words: expected a list of texts"):
            client.messages.create(
                model="tiny", messages=MESSAGES, max_tokens=3, extra_body={"bad_words": "a"}
            )


# Errors for programs


WRONG = {
    "custom_logit_processor": "BadWordsLogitProcessor",
    "custom_params": {"words": 5},
}
CODED = {"sglang_lp_code": "invalid_parameter", "param": "custom_params.words"}


def wrong_for(server, path, **fields):
    if path != "/generate":
        return body_for(server, path, **WRONG, **fields)
    sampling = {"custom_params": WRONG["custom_params"]}
    return {
        **ENDPOINTS[path],
        "custom_logit_processor": WRONG["custom_logit_processor"],
        "sampling_params": sampling,
        **fields,
    }


def error_of(answer):
    """Return SGLang's error object of an answer, whole or in the events of a stream."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in answer.text.splitlines()]
        events = [json.loads(line) for line in lines if line.startswith("{")]
        found = [event.get("response", event).get("error") for event in events]
        (error,) = [one for one in found if one]
        return error
    whole = answer.json()
    return whole.get("error", whole)


@on_servers("default")
@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_has_a_code_and_a_field_on_every_endpoint(server, path, stream):
    error = error_of(post(server, path, wrong_for(server, path, stream=stream)))
    assert {key: error[key] for key in CODED} == CODED
    assert path == "/v1/messages" or error["message"].startswith("words of BadWords")

    misspelled = error_of(post(server, path, body_for(server, path, extra_body={"a": 1})))
    assert (misspelled["sglang_lp_code"], misspelled["param"]) == ("invalid_request", "extra_body")


@on_servers("default")
@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_in_the_middle_says_why(server, path, stream):
    chain = {"chain": ["ForcedSequenceLogitProcessor", "DisallowedTokensLogitsProcessor"]}
    params = {**chain, "0.token_ids": [5, 6, 7], "1.token_ids": [7]}
    fields = {"custom_logit_processor": "ChainLogitProcessor", "custom_params": params}
    if path == "/generate":
        params = fields.pop("custom_params")
        fields["sampling_params"] = {"custom_params": params, "max_new_tokens": 8}
    answer = post(server, path, body_for(server, path, stream=stream, **fields))
    if path == "/generate" and stream:
        last = json.loads(answer.text.split("data: ")[-2])
        error = last["meta_info"]["finish_reason"]
    else:
        error = error_of(answer)
    assert (error["sglang_lp_code"], error["param"]) == ("contradiction", None)


@on_servers("default")
def test_the_openai_client_reads_code_and_field(server):
    with openai_client(server.url) as client:
        for create in (client.chat.completions.create, client.completions.create):
            asked = {"messages": MESSAGES} if create == client.chat.completions.create else {}
            asked = asked or {"prompt": "a"}
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError) as refused:
                    create(model="default", extra_body=WRONG, stream=stream, **asked)
                assert refused.value.code == 400
                assert refused.value.param == "custom_params.words"
                assert refused.value.body["sglang_lp_code"] == "invalid_parameter"
