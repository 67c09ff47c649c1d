"""Sampling parameters that the gates take keep every row finite; the others are refused."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.errors import RequestError
from sglang_lp.server.gate.field_checks import (
    check_body,
    check_positions,
    check_received,
    check_sampling,
)

VOCAB = 100

#: Any number of JSON, and those where float32 ends.
numbers = (
    st.floats()
    | st.integers()
    | st.sampled_from([1e300, 1e39, 3.4e38, 1e38, 1e30, 1e-6, 1e-38, 1e-45, 1e-310, 0, 1, 2, -2])
)
sampling = st.fixed_dictionaries(
    {},
    optional={
        "temperature": numbers,
        "repetition_penalty": numbers,
        "frequency_penalty": numbers,
        "presence_penalty": numbers,
        "logit_bias": st.dictionaries(st.sampled_from("123"), numbers, max_size=3),
    },
)


def takes(given, vocab=VOCAB):
    try:
        check_sampling(given, vocab)
    except RequestError:
        return False
    return True


def sampled_from(given):
    """Return the logits that SGLang would sample from, in its order and in float32."""
    logits = np.float32([-1e4, -30, 0, 1e4])  # more than any model has
    penalty = np.float32(given.get("repetition_penalty", 1))
    logits = np.where(logits > 0, logits / penalty, logits * penalty)
    for name in ("frequency_penalty", "presence_penalty"):
        logits = logits - np.float32(given.get(name, 0)) * np.float32(2**20)
    for token, bias in given.get("logit_bias", {}).items():
        logits[int(token)] += np.float32(bias)
    temperature = given.get("temperature", 1)
    return logits / np.float32(1 if temperature < 1e-6 else temperature)


@given(sampling)
def test_no_parameters_that_are_taken_make_a_finite_row_not_finite(given):
    if takes(given):
        with np.errstate(all="ignore"):
            assert np.isfinite(sampled_from(given)).all()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperatur": 1}, "sampling_params"),
        ({"top_k": 2**31}, "top_k"),
        ({"n": None}, "n"),
        ({"is_normalized": True}, "is_normalized"),
        ({"stop_regex_max_len": 2**40}, "stop_regex_max_len"),
        ({"logit_bias": {str(VOCAB): 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": None}}, "logit_bias"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop": ["a" * 1025]}, "stop"),
        ({"json_schema": {}}, "json_schema"),
        ({"min_new_tokens": 1, "stop_token_ids": [*range(VOCAB)]}, "min_new_tokens"),
    ],
    ids=str,
)
def test_a_parameter_out_of_range_is_refused_by_its_name(given, field):
    with pytest.raises(RequestError) as refused:
        check_sampling(given, VOCAB)
    assert refused.value.param == field


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": None, "top_k": -1, "stop": None, "stop_token_ids": [None, 5]},
        {"logit_bias": {"0": 5, "99": -100.0}, "top_p": 1, "min_p": 0},
        {"stop": ["\n", "</s>"], "max_new_tokens": 0, "n": 4, "sampling_seed": -1},
    ],
    ids=str,
)
def test_what_clients_send_is_taken(given):
    assert takes(given)


def body(**fields):
    from sglang.srt.managers.io_struct import GenerateReqInput

    return GenerateReqInput(**fields)


@pytest.mark.parametrize(
    ("fields", "many"),
    [
        ({"rid": ["a"]}, False),
        ({"return_logprob": [True]}, False),
        ({"top_logprobs_num": VOCAB + 1}, False),
        ({"top_logprobs_num": [1, VOCAB + 1]}, True),
        ({"token_ids_logprob": [VOCAB]}, False),
        ({"token_ids_logprob": [[1], [VOCAB]]}, True),
        ({"session_params": {"id": 5}}, False),
        ({"session_params": {"id": "a", "foo": 1}}, False),
        ({"session_params": {"id": "a", "replace": True}}, False),
        ({"positional_embed_overrides": []}, False),
        ({"positional_embed_overrides": [None]}, False),
        ({"positional_embed_overrides": [None, []]}, True),
        ({"http_worker_ipc": "x"}, False),
        ({"priority": 2**63}, False),
        ({"logprob_start_len": -2}, False),
        ({"token_indices_to_pool": [0]}, False),
        ({"multi_item_delimiter_indices": [[0]], "logprob_start_len": [0, 1]}, True),
    ],
    ids=str,
)
def test_a_field_of_a_body_out_of_range_is_refused_by_its_name(fields, many):
    with pytest.raises(RequestError) as refused:
        check_body(body(**fields), VOCAB, many=many)
    assert refused.value.param == next(iter(fields))


# `PositionalEmbeds` reads `dim` of what JSON gives /encode and /classify: HTTP 500.
@pytest.mark.parametrize("given", [5, [[1.0]], [[[1.0]], None], [5], [["a"]]], ids=str)
def test_overrides_that_no_endpoint_has_made_tensors_of_are_refused(given):
    from sglang.srt.managers.io_struct import EmbeddingReqInput

    with pytest.raises(RequestError) as refused:
        check_body(EmbeddingReqInput(input_ids=[5], embed_overrides=given), VOCAB, many=False)
    assert refused.value.param == "embed_overrides"


@pytest.mark.parametrize("many", [False, True])
def test_overrides_of_an_endpoint_are_taken(many):
    from sglang.srt.managers.io_struct import EmbeddingReqInput
    from torch import zeros

    given = [[zeros(4)], None] if many else [zeros(4)]
    check_body(EmbeddingReqInput(input_ids=[5], embed_overrides=given), VOCAB, many=many)


@pytest.mark.parametrize(
    ("fields", "many"),
    [
        ({}, False),
        ({"rid": "a", "return_logprob": True, "top_logprobs_num": VOCAB, "stream": True}, False),
        ({"rid": ["a", "b"], "return_logprob": [True, None], "token_ids_logprob": [5]}, True),
        ({"session_params": {"id": "a", "replace": True, "rid": "b"}}, False),
        ({"token_indices_to_pool": [[0], [1]], "logprob_start_len": 0}, True),
    ],
    ids=str,
)
def test_fields_in_range_are_taken(fields, many):
    check_body(body(**fields), VOCAB, many=many)


@pytest.mark.parametrize("given", [[3], [-1], [0, 10**9]])
def test_a_position_outside_of_the_prompt_is_refused(given):
    request = SimpleNamespace(token_indices_to_pool=given)
    with pytest.raises(RequestError, match=r"^token_indices_to_pool: expected positions"):
        check_positions(request, [1, 2, 3])


def received(**fields):
    from sglang.srt.sampling.sampling_params import SamplingParams

    params = SamplingParams(**fields)
    params.normalize(SimpleNamespace(encode=lambda text, **_: [*text]))
    return SimpleNamespace(sampling_params=params, origin_input_ids=[1])


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e39},
        {"repetition_penalty": 1e-310},
        {"logit_bias": {"5": 1e39}},
        {"stop_token_ids": [VOCAB]},
        {"top_k": 2**31},
        {"stop_regex": r"^(\s?\w?.?)+\x01$"},
    ],
    ids=str,
)
def test_the_scheduler_refuses_what_came_by_another_front_end(fields):
    with pytest.raises(RequestError) as refused:
        check_received(received(**fields), VOCAB)
    assert refused.value.param == next(iter(fields))


def test_the_scheduler_takes_what_sglang_makes_of_a_request():
    check_received(received(stop=["a"], stop_regex="b", temperature=0, max_new_tokens=5), VOCAB)
    check_received(received(), VOCAB)


@pytest.mark.parametrize("grammar", ["json_schema", "regex", "ebnf", "structural_tag"])
def test_a_grammar_and_not_a_least_length_decides_when_an_answer_may_end(grammar):
    both = {"min_new_tokens": 3, grammar: "{}"}
    for check in (
        lambda: check_sampling(both, VOCAB),
        lambda: check_received(received(**both), VOCAB),
    ):
        with pytest.raises(RequestError, match=rf"end \(here {grammar};.*got 3") as refused:
            check()
        assert refused.value.param == "min_new_tokens"
    assert takes({"min_new_tokens": 0, grammar: "{}"})
    check_received(received(**{grammar: "{}"}), VOCAB)
