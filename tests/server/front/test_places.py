"""Fields that a client misspells or puts in the wrong place are refused with the right one."""

from __future__ import annotations

import itertools

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front.places import (
    PARAMS,
    PROCESSOR,
    check_generate,
    check_ollama,
    check_openai,
    meant_by,
    refuse_named,
)

NAMES = [
    *itertools.product(
        (
            *("custom_logits_processor", "custom_logit_processors", "custom_logits_processors"),
            *("logit_processor", "logit_processors", "logits_processor", "logits_processors"),
            *("customLogitProcessor", "Custom-Logit-Processor", "custom_logit_procesor"),
        ),
        [PROCESSOR],
    ),
    *itertools.product(
        ("custom_param", "custom_parameter", "custom_parameters", "customParams"), [PARAMS]
    ),
]


@pytest.mark.parametrize(("wrong", "right"), NAMES)
def test_a_misspelled_field_is_refused_with_its_name(wrong, right):
    for check in (check_openai, check_generate):
        with pytest.raises(RequestError, match=f"{wrong}: no such field; did you mean '{right}'"):
            check({"text": "a", wrong: "X"})
        check({"text": f"write {wrong}", wrong: None})
    for inside, check in (("sampling_params", check_generate), ("options", check_ollama)):
        with pytest.raises(RequestError, match=f"{wrong}: no such field; did you mean '{right}'"):
            check({inside: {wrong: "X"}})


def test_no_other_field_of_sglangs_is_taken_for_a_misspelled_one(sglang):
    from sglang.srt.entrypoints.ollama import protocol as ollama
    from sglang.srt.entrypoints.openai import protocol
    from sglang.srt.managers.io_struct import EmbeddingReqInput, GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    names = {*GenerateReqInput.__dataclass_fields__, *EmbeddingReqInput.__dataclass_fields__}
    names |= {*SamplingParams.__struct_fields__}
    for module in (protocol, ollama):
        for kind in vars(module).values():
            names |= {*getattr(kind, "model_fields", ())}

    assert {name for name in names if meant_by(name) not in {None, name}} == set()
    assert {meant_by(name) for name in names} == {None, PROCESSOR, PARAMS}


def test_a_long_key_costs_no_more_than_a_short_one():
    assert meant_by("custom_" + "_" * 1_000_000 + "params") is None
    check_openai({"custom_" + "_" * 1_000_000 + "params": 1})


def test_the_argument_of_the_openai_client_is_no_field():
    for check in (check_openai, check_generate):
        with pytest.raises(RequestError, match="extra_body: no field, but an argument"):
            check({"extra_body": {"custom_params": {}}})
        check({"extra_body": {}})


def test_fields_in_the_wrong_place_are_refused_with_the_right_one():
    for name, value in (("custom_params", {"a": 1}), ("custom_logit_processor", "X")):
        inside = {"sampling_params": {name: value}}
        with pytest.raises(RequestError, match=f"{name}: expected at the top of the body on this"):
            check_openai(inside)
    check_openai({"custom_params": {}, "sampling_params": {"top_p": 1}})
    with pytest.raises(RequestError, match="custom_params: expected in sampling_params on /gen"):
        check_generate({"custom_params": {"a": 1}})
    both = {"sampling_params": [{"custom_params": {"b": 1}}, {}], "custom_params": {"a": 1}}
    with pytest.raises(RequestError, match="custom_params: expected in sampling_params on /gen"):
        check_generate(both)
    for many in (inside, {"sampling_params": [{}, inside["sampling_params"]]}):
        with pytest.raises(RequestError, match="custom_logit_processor: expected at the top of"):
            check_generate(many)
    for body in ({"custom_params": {}}, {"sampling_params": {"logits_processors": "X"}}):
        with pytest.raises(RequestError, match="in options on this endpoint"):
            check_ollama(body)


def test_a_body_with_everything_in_its_place_passes():
    check_generate({"custom_logit_processor": "X", "sampling_params": {"custom_params": {"a": 1}}})
    check_generate({"text": ["a"], "sampling_params": [{"custom_params": {"a": 1}}, None]})
    check_ollama({"options": {"custom_logit_processor": "X", "custom_params": {"a": 1}}})
    for check in (check_openai, check_generate, check_ollama):
        for body in (None, [1], {}, {"sampling_params": 5, "options": [1]}, {"text": {PARAMS: 1}}):
            check(body)


@pytest.mark.parametrize("place", [None, "sampling_params", "options", "extra_body", "session"])
@pytest.mark.parametrize("name", [PROCESSOR, PARAMS, "logits_processors"])
def test_a_named_processor_is_refused_where_none_runs(place, name):
    body = {name: {"a": 1}}
    with pytest.raises(RequestError, match=f"{name}: expected no .* on /v1/score, which scores"):
        refuse_named({place: body} if place else body, "/v1/score", "which scores")
    refuse_named(
        {place or "input": {name: None}, "text": name, name: None}, "/v1/score", "which scores"
    )
    with pytest.raises(RequestError, match=r"metadata\.sglang_lp: expected no custom logit"):
        refuse_named({"metadata": {"sglang_lp": "X"}}, "/v1/score", "which scores")
