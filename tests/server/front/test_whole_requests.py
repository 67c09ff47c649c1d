"""A body is checked whole before SGLang normalizes it, and refused by the client's own names."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fastapi import HTTPException

from sglang_lp.errors import RequestError
from sglang_lp.server.front import header
from sglang_lp.server.front.bounds import MAX_CHARACTERS_OF_TOKEN, MAX_COPIES, MAX_REQUESTS
from sglang_lp.server.front.whole_requests import WholeRequests, check_not_empty

CONTEXT = 100
MANAGER = SimpleNamespace(
    model_config=SimpleNamespace(vocab_size=100, context_len=CONTEXT),
    server_args=SimpleNamespace(
        disaggregation_mode="null",
        enable_metrics=True,
        tokenizer_metrics_allowed_custom_labels=["team"],
    ),
    tokenizer=SimpleNamespace(encode=lambda text: [*text]),
)


def body(**fields):
    from sglang.srt.managers.io_struct import GenerateReqInput

    return GenerateReqInput(
        **({} if {"text", "input_ids"} & fields.keys() else {"text": "a"}) | fields
    )


@pytest.fixture
def whole(guard):
    return WholeRequests(guard)


@pytest.fixture
def over_http(monkeypatch):
    def set_route(path):
        scope = {"route": SimpleNamespace(path=path)}
        monkeypatch.setattr(header, "_scope", SimpleNamespace(get=lambda: scope))

    set_route("/generate")
    return set_route


REFUSED = [
    ({"sampling_params": [{}]}, "sampling_params"),
    ({"sampling_params": []}, "sampling_params"),
    ({"text": [], "sampling_params": []}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}, 5]}, "sampling_params"),
    ({"text": ["a", "b"], "sampling_params": [{}, {"top_k": "x"}]}, "top_k"),
    ({"sampling_params": {"n": "2"}}, "n"),
    ({"sampling_params": {"n": MAX_COPIES + 1}}, "n"),
    ({"text": ["a"] * (MAX_REQUESTS + 1)}, "text"),
    ({"text": ["a"] * (MAX_REQUESTS // 2 + 1), "sampling_params": {"n": 2}}, "text"),
    ({"text": "a" * (CONTEXT * MAX_CHARACTERS_OF_TOKEN + 1)}, "text"),
    ({"text": ""}, "text"),
    ({"text": ["a", ""]}, "text"),
    ({"text": ["a", None]}, "text"),
    ({"text": 5}, "text"),
    ({"input_ids": [[1], []]}, "input_ids"),
    # OverflowError in `_create_tokenized_object`.
    ({"input_ids": [2**63]}, "input_ids"),
    ({"input_ids": [1, -(2**63) - 1]}, "input_ids"),
    # SGLang compares only the number of images with the number of texts.
    ({"text": ["a", "b"], "audio_data": [[None]]}, "audio_data"),
    ({"text": ["a", "b"], "video_data": []}, "video_data"),
    ({"sampling_params": {"n": 2}, "audio_data": []}, "audio_data"),
    ({"rid": ["a"]}, "rid"),
    ({"text": ["a", "b"], "rid": ["a"]}, "rid"),
    ({"text": ["a", "b"], "return_logprob": [True]}, "return_logprob"),
    ({"custom_labels": {"a": "b"}}, "custom_labels"),
    # IndexError and TypeError in `normalize_batch_and_arguments` and `_create_tokenized_object`.
    ({"text": "a", "input_ids": [[1]]}, "input_ids"),
    ({"text": ["a", "b"], "input_ids": [1, 2]}, "input_ids"),
    ({"text": ["a", "b"], "input_ids": [[1]]}, "input_ids"),
    ({"text": None, "input_embeds": []}, "input_embeds"),
    ({"text": None, "input_embeds": [[]]}, "input_embeds"),
    # Read by `_create_tokenized_object` and `SamplingBatchInfo` for each text and copy.
    ({"sampling_params": {"n": 512, "stop_token_ids": [*range(100)] * 6}}, "stop_token_ids"),
    ({"text": ["a"] * 2_048, "token_ids_logprob": [5] * 129}, "token_ids_logprob"),
    ({"text": ["a"] * 2_048, "sampling_params": {"stop": ["a" * 1_024] * 32}}, "stop"),
    ({"text": ["a"] * 2_048, "sampling_params": {"stop_regex": ["a"] * 32}}, "stop_regex"),
    ({"sampling_params": {"n": 256, "stop_regex": r"a\d{1,64}b"}}, "stop_regex"),
    ({"sampling_params": {"stop_regex": ["a"] * 33}}, "stop_regex"),
    # Sent to the scheduler for each copy.
    ({"sampling_params": {"n": 512, "json_schema": "{}" + " " * 32_767}}, "json_schema"),
    ({"rid": "a" * 1_025}, "rid"),
    ({"custom_labels": {"team": "a" * 1_025}}, "custom_labels"),
    # Returned by each step: 256 rows with 1,024 of them took 0.3 s.
    ({"text": ["a"] * 2_048, "return_logprob": True, "top_logprobs_num": 32}, "top_logprobs_num"),
    (
        {"text": ["a"] * 2_048, "return_logprob": [True, False] * 1_024, "top_logprobs_num": 64},
        "top_logprobs_num",
    ),
    (
        {
            "return_logprob": True,
            "token_ids_logprob": [5] * 256,
            "sampling_params": {"n": 256},
        },
        "top_logprobs_num",
    ),
    # `is_health_check_generate_req`: a busy scheduler drops it, and its client waits for good.
    ({"rid": "HEALTH_CHECK"}, "rid"),
    ({"text": ["a", "b"], "rid": ["a", "HEALTH_CHECK_1"]}, "rid"),
]


@pytest.mark.parametrize(
    ("fields", "field"), REFUSED, ids=[f"{name}-{at}" for at, (_, name) in enumerate(REFUSED)]
)
@pytest.mark.usefixtures("over_http")
def test_a_body_is_refused_by_the_name_of_its_field(whole, guard, fields, field):
    with pytest.raises(RequestError) as refused:
        whole.check(MANAGER, body(**fields))

    assert refused.value.param == field
    assert guard.audit.counts == {("admission", "invalid_request"): 1}
    with pytest.raises(HTTPException) as streamed:
        whole.check_stream(MANAGER, body(**fields, stream=True))
    assert streamed.value.status_code == 400


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sampling_params": {"n": MAX_COPIES}},
        {"text": ["a"] * MAX_REQUESTS},
        {"text": ["a", "b"], "sampling_params": [{}, {"top_k": 5}], "rid": ["a", "b"]},
        {"sampling_params": {"n": 2}, "rid": ["a"]},
        {"text": ["a", "b"], "token_ids_logprob": [5], "return_logprob": True},
        {"input_ids": [[1], [2]], "top_logprobs_num": [1, 2]},
        {"input_ids": [], "session_params": {"id": "a"}},
        {"text": "", "session_params": {"id": "a"}},
        {"text": ["a", "b"], "audio_data": [None, None], "video_data": None},
        {"audio_data": ["a", "b"]},
        {"text": "a", "input_ids": [1]},
        # SGLang's own values, since 0.5.21.
        {"sampling_logprobs_mode": "support"},
        {"text": ["a", "b"], "input_ids": [[1], [2]]},
        {"sampling_params": {"stop": ["</s>", "\n\nQuestion:"]}, "text": ["a"] * 2_048},
        {"sampling_params": {"n": 16, "logit_bias": {"5": 1.0}, "stop_regex": r"\d{1,16}"}},
        {"custom_labels": {"team": "b"}},
        {"sampling_params": {"n": 512, "json_schema": "{}" + " " * 32_766}},
        {"rid": "a" * 1_024},
        {"rid": "a HEALTH_CHECK"},
        {"return_logprob": True, "top_logprobs_num": 31, "text": ["a"] * 2_048},
        {"top_logprobs_num": 100, "text": ["a"] * 2_048},
        {"return_logprob": [True, False] * 1_024, "top_logprobs_num": 63, "text": ["a"] * 2_048},
        {
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "top_logprobs_num": 100,
            "text": ["a"] * 2_048,
        },
    ],
    ids=lambda fields: str(fields)[:50],
)
@pytest.mark.usefixtures("over_http")
def test_what_sglang_answers_is_taken(whole, fields):
    whole.check(MANAGER, body(**fields))


# SGLang tokenizes them before it refuses a body for embeddings on a model that generates.
@pytest.mark.usefixtures("over_http")
@pytest.mark.parametrize(
    "text",
    [["a", "b" * CONTEXT * MAX_CHARACTERS_OF_TOKEN], ["a"], ["a"] * 3, ["a", ["b"]]],
    ids=["long", "one", "three", "nested"],
)
def test_a_text_for_an_embedding_is_a_text_or_a_pair_of_two_that_fit_the_context(whole, text):
    from sglang.srt.managers.io_struct import EmbeddingReqInput

    pair = EmbeddingReqInput(text=[["a", "b"], "c"], is_cross_encoder_request=True)
    whole.check(MANAGER, pair)
    pair.text = [text]
    with pytest.raises(RequestError, match=r"^text: expected"):
        whole.check(MANAGER, pair)


# IndexError in `EmbeddingReqInput.normalize_batch_and_arguments`.
def test_an_embedding_of_no_token_ids_is_refused(whole):
    from sglang.srt.managers.io_struct import EmbeddingReqInput

    with pytest.raises(RequestError, match=r"^input_ids: expected a token id or more"):
        whole.check(MANAGER, EmbeddingReqInput(input_ids=[]))


# 2,048 texts with 32 patterns each took a second to read.
@pytest.mark.usefixtures("over_http")
def test_patterns_are_counted_before_the_first_is_read(whole):
    samplings = [{"stop_regex": [f"{at} {other}(" for other in range(32)]} for at in range(256)]
    with pytest.raises(RequestError, match="stop_regex: expected at most 2097152 steps"):
        whole.check(MANAGER, body(text=["a"] * 256, sampling_params=samplings))


@pytest.mark.parametrize("route", ["/health", "/health_generate"])
def test_sglangs_own_health_checks_have_their_ids(whole, over_http, route):
    over_http(route)
    whole.check(MANAGER, body(rid="HEALTH_CHECK_1"))


def test_an_engine_may_have_more_texts_and_copies(whole):
    whole.check(MANAGER, body(text=["a"] * (MAX_REQUESTS + 1)))
    whole.check(MANAGER, body(sampling_params={"n": MAX_COPIES + 1}))


def test_the_client_reads_the_name_that_it_wrote(whole, over_http):
    for route, name in (("/v1/chat/completions", "top_logprobs"), ("/v1/completions", "logprobs")):
        over_http(route)
        with pytest.raises(RequestError) as refused:
            whole.check(MANAGER, body(return_logprob=True, top_logprobs_num=1_000))
        assert refused.value.param == name
        assert str(refused.value).startswith(f"{name}: ")


def test_labels_are_of_no_matter_without_metrics(whole):
    args = SimpleNamespace(**{**vars(MANAGER.server_args), "enable_metrics": False})
    manager = SimpleNamespace(**{**vars(MANAGER), "server_args": args})
    whole.check(manager, body(custom_labels={"a": "b"}))


def test_a_prompt_without_tokens_is_refused_unless_something_is_in_their_place():
    with pytest.raises(RequestError, match=r"^text: expected a token or more"):
        check_not_empty(SimpleNamespace(input_ids=[]))
    check_not_empty(SimpleNamespace(input_ids=[], session_params="a session"))
    check_not_empty(SimpleNamespace(input_ids=None))


SERVING = SimpleNamespace(tokenizer_manager=MANAGER)


@pytest.mark.parametrize(
    "prompt",
    ["a" * 2_000_000, ["a", "a" * 2_000_000], ["a"] * 3_000, ["a" * 1_600] * 164],
    ids=["one", "one of two", "number", "together"],
)
def test_texts_that_take_too_long_to_tokenize_are_refused(whole, prompt):
    with pytest.raises(RequestError):
        whole.check_tokenize(SERVING, SimpleNamespace(prompt=prompt))
    whole.check_tokenize(SERVING, SimpleNamespace(prompt=None))


def test_texts_to_tokenize_have_together_what_one_of_them_may_have(whole):
    config = SimpleNamespace(vocab_size=100, context_len=100_000)
    serving = SimpleNamespace(tokenizer_manager=SimpleNamespace(model_config=config))
    with pytest.raises(RequestError, match=r"^prompt: expected at most 1600000 characters"):
        whole.check_tokenize(serving, SimpleNamespace(prompt=["a" * 800_001] * 2))
    whole.check_tokenize(serving, SimpleNamespace(prompt=["a" * 800_000] * 2))


@pytest.mark.parametrize("tokens", [[-1], [[1], [100]], [1] * (CONTEXT + 1), [2**70]])
def test_token_ids_without_a_text_are_refused(whole, tokens):
    with pytest.raises(RequestError, match=r"^tokens: expected"):
        whole.check_detokenize(SERVING, SimpleNamespace(tokens=tokens))
    for others in ([], [1, 99], [[1], [99]], ["a"]):
        whole.check_detokenize(SERVING, SimpleNamespace(tokens=others))
