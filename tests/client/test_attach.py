"""One processor for a request: its checks, its fields, and the fields that stay unchanged."""

import copy
import json
import os
import pickle
import subprocess
import sys
from array import array
from pathlib import Path

import dill
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp import builtins
from sglang_lp.client import Attachment, attach
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.processor import LogitProcessor

ROOT = Path(__file__).parents[2]

#: Parameters that some built-ins take: one of each kind, and each with ids of its own.
WORKING = {
    "DisallowedTokensLogitsProcessor": {"token_ids": [3, 1]},
    "ForcedSequenceLogitProcessor": {"token_ids": [3, 1], "eos_token_ids": [2]},
    "DeepseekOCRNoRepeatNGramLogitProcessor": {"ngram_size": 3, "window_size": 9},
    "ThinkingBudgetLogitProcessor": {
        "thinking_budget": 5,
        "thinking_start_token_id": 1,
        "thinking_end_token_id": 2,
    },
} | {
    f"{model}ThinkingBudgetLogitProcessor": {"thinking_budget": 5}
    for model in ("Qwen3", "DeepSeekR1", "Glm4Moe", "Inkling")
}


class Foreign:
    """A class of another library: it has SGLang's ``to_str()`` and no schema."""

    @classmethod
    def to_str(cls):
        return "the text of Foreign"


@pytest.fixture
def ban():
    return attach("DisallowedTokensLogitsProcessor", token_ids=[3, 1])


# What attach() takes


@pytest.mark.parametrize("name", WORKING)
def test_a_builtin_is_attached_by_name_as_by_class(name):
    by_class = attach(getattr(builtins, name), **WORKING[name])

    assert attach(name, **WORKING[name]) == by_class
    assert by_class.custom_params == WORKING[name]


@pytest.mark.parametrize("name", builtins.__all__)
def test_every_builtin_is_known_by_its_name(name):
    with pytest.raises(InvalidParameter, match=f"{name}: .*unknown parameter 'no_such_thing'"):
        attach(name, no_such_thing=1)


@pytest.mark.parametrize("name", WORKING)
def test_the_payload_is_what_to_str_and_dill_write(name):
    cls = getattr(builtins, name)
    payload = attach(name, **WORKING[name]).payload

    assert payload == cls.to_str()
    assert payload == json.dumps({"callable": dill.dumps(cls).hex()})


def test_a_class_of_ones_own_is_attached_with_its_schema():
    class Own(builtins.ForcedSequenceLogitProcessor):
        pass

    own = attach(Own, token_ids=[1])

    assert own.processor is Own
    assert own.payload == Own.to_str()
    with pytest.raises(InvalidParameter, match=r"^token_ids of Own: expected"):
        attach(Own)


def test_a_foreign_class_passes_with_its_own_text_and_any_parameters():
    foreign = attach(Foreign, whatever=[1, "a", None], flag=True)

    assert foreign.payload == "the text of Foreign"
    assert foreign.custom_params == {"whatever": [1, "a", None], "flag": True}


def test_a_parameter_may_have_any_name():
    assert attach(Foreign, processor=1, self=2).custom_params == {"processor": 1, "self": 2}


@pytest.mark.parametrize(
    ("processor", "params", "message"),
    [
        ("MinLengthLogitProcessor", {}, "^min_tokens of .*: required, but not given"),
        ("DRYLogitProcessor", {"dry_base": 0}, "dry_base"),
        (
            "Qwen3ThinkingBudgetLogitProcessor",
            {"min_thinking_tokens": -1},
            "expected a whole number of 0 or more, got -1",
        ),
        (
            "Qwen3ThinkingBudgetLogitProcessor",
            {"thinking_budge": 1},
            "did you mean 'thinking_budget'",
        ),
        (
            "DisallowedTokensLogitsProcessor",
            {"token_ids": ["a"]},
            r"expected a whole number, such as 8, got 'a' at \[0\]",
        ),
        ("DisallowedTokensLogitsProcessor", {"token_ids": [[1]]}, "flat lists .* got list of 1"),
        (
            "DisallowedTokensLogitsProcessor",
            {"token_ids": [1.5]},
            "expected a whole number, such as 8, got 1.5",
        ),
        ("DisallowedTokensLogitsProcessor", {"token_ids": b"ab"}, "got bytes"),
        ("DisallowedTokensLogitsProcessor", {"token_ids": {1: 2}}, "expected text for the keys"),
        ("DisallowedTokensLogitsProcessor", {"token_ids": [], "__req__": 1}, "reserved by SGLang"),
        (Foreign, {"value": object()}, "got object"),
        (Foreign, {"value": float("nan")}, "expected a finite number"),
        (Foreign, {"value": {"deep": [1]}}, "got list of 1"),
        (Foreign, {"value": np.zeros((2, 2))}, "got list of 2"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused_at_once(processor, params, message):
    with pytest.raises(InvalidParameter, match=message):
        attach(processor, **params)


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        ("Qwen3ThinkingBudget", "did you mean Qwen3ThinkingBudgetLogitProcessor"),
        ("DisallowedTokensLogitProcessor", "did you mean DisallowedTokensLogitsProcessor"),
        ("Disallowed", r"did you mean DisallowedTokensLogitsProcessor\?"),
        ("xyz", "got 'xyz'; a class of your own goes in itself"),
        ("__all__", "got '__all__'"),
        (builtins.ForcedSequenceLogitProcessor.to_str(), "got a payload text; it can go into"),
        (builtins.ForcedSequenceLogitProcessor(), "got ForcedSequenceLogitProcessor; give its cl"),
        (int, "got int"),
        (None, "got None"),
    ],
)
def test_what_is_no_processor_is_refused_with_a_hint(processor, message):
    with pytest.raises(RequestError, match=message) as caught:
        attach(processor)
    assert "8004" not in str(caught.value), "a payload is never echoed"


# Values


@pytest.mark.parametrize(
    "token_ids",
    [
        (4, 5, 6),
        range(4, 7),
        frozenset({4, 5, 6}),
        {4, 5, 6},
        array("q", [4, 5, 6]),
        np.array([4, 5, 6]),
        [*np.array([4, 5, 6], dtype=np.uint8)],
        torch.tensor([4, 5, 6]),
        [*torch.tensor([4, 5, 6])],
    ],
    ids=lambda value: f"{type(value).__name__}_of_{type(next(iter(value))).__name__}",
)
def test_a_collection_of_ids_becomes_a_list_of_ints(token_ids):
    sent = attach("DisallowedTokensLogitsProcessor", token_ids=token_ids).custom_params["token_ids"]

    assert sorted(sent) == [4, 5, 6]
    assert {*map(type, sent)} == {int}


@pytest.mark.parametrize("budget", [np.int64(7), np.array(7), torch.tensor(7)])
def test_an_integer_of_numpy_or_torch_becomes_an_int(budget):
    sent = attach("Qwen3ThinkingBudgetLogitProcessor", thinking_budget=budget)

    assert type(sent.custom_params["thinking_budget"]) is int


def test_what_is_attached_does_not_follow_the_list_it_was_made_of():
    token_ids = [1, 2]
    ban = attach("DisallowedTokensLogitsProcessor", token_ids=token_ids)
    token_ids.append(3)
    ban.custom_params["token_ids"].append(4)
    ban.generate_body({})["sampling_params"]["custom_params"]["token_ids"].append(5)

    assert ban.custom_params == {"token_ids": [1, 2]}


def test_an_attachment_cannot_be_changed_and_can_be_pickled(ban):
    with pytest.raises(AttributeError, match="immutable"):
        ban.payload = ""
    assert pickle.loads(pickle.dumps(ban)) == ban


# Requests

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
#: Keys that are neither the client's nor "b", which the attachment of the property below sets.
other_keys = st.text(max_size=6).filter(
    lambda key: key not in {"b", "custom_params", "custom_logit_processor", "sampling_params"}
)
objects = st.dictionaries(other_keys, json_values, max_size=4)
custom_params = st.none() | st.builds(
    lambda rest, same: rest | ({"b": [1, 2]} if same else {}), objects, st.booleans()
)
sampling = st.builds(lambda rest, params: rest | {"custom_params": params}, objects, custom_params)
sampling_or_many = st.none() | sampling | objects | st.lists(sampling | objects, max_size=3)
ATTACHED = {"b": [1, 2], "c": None}


def without(mapping, *keys):
    return {key: value for key, value in mapping.items() if key not in keys}


def holds(result, given):
    """Tell whether sampling_params or an extra_body kept everything and got the parameters."""
    given = {} if given is None else given
    kept = given.get("custom_params") or {}
    changed = ("custom_params", "custom_logit_processor")
    return (
        without(result, *changed) == without(given, *changed)
        and result["custom_params"] == kept | ATTACHED
    )


def all_hold(result, given):
    if isinstance(given, list):
        return len(result) == len(given) and all(map(holds, result, given))
    return holds(result, given)


@given(body=objects, params=sampling_or_many, extra=sampling | objects)
def test_a_request_keeps_what_it_holds_and_its_parts_are_never_changed(body, params, extra):
    attachment = attach(Foreign, **ATTACHED)
    whole = body | {"sampling_params": params}
    before = copy.deepcopy((whole, extra))

    sent = attachment.generate_body(whole)
    kwargs = attachment.engine_kwargs(params, **body)
    extended = attachment.extra_body(extra)

    assert (whole, extra) == before
    assert kwargs == sent
    assert without(sent, "sampling_params", "custom_logit_processor") == body
    assert all_hold(sent["sampling_params"], params)
    assert holds(extended, extra)
    for request in (sent, extended):
        assert request["custom_logit_processor"] == attachment.payload
    assert msgspec.json.decode(json.dumps([sent, extended])) is not None


def test_custom_params_are_sent_also_when_there_are_none():
    bare = attach(Foreign)

    assert bare.generate_body({})["sampling_params"] == {"custom_params": {}}
    assert bare.engine_kwargs([{}, {"n": 2}])["sampling_params"] == [
        {"custom_params": {}},
        {"n": 2, "custom_params": {}},
    ]
    assert bare.extra_body()["custom_params"] == {}


def test_a_null_processor_counts_as_none(ban):
    assert ban.generate_body({"custom_logit_processor": None})["custom_logit_processor"]


REQUESTS = {
    "engine_kwargs": lambda attachment, params: attachment.engine_kwargs({"custom_params": params}),
    "generate_body": lambda attachment, params: attachment.generate_body(
        {"sampling_params": [{}, {"custom_params": params}]}
    ),
    "extra_body": lambda attachment, params: attachment.extra_body({"custom_params": params}),
}
each_request = pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)


@each_request
def test_another_value_for_an_attached_parameter_is_refused(ban, request_of):
    with pytest.raises(
        InvalidParameter, match=r"^token_ids of .*: given twice.* list of 1 .* list of 2"
    ):
        request_of(ban, {"token_ids": [9]})


@each_request
def test_the_same_value_again_is_no_conflict(ban, request_of):
    request_of(ban, {"token_ids": (3, 1)})


@each_request
def test_a_parameter_that_the_request_adds_is_checked_with_the_rest(request_of):
    forced = attach("ForcedSequenceLogitProcessor", token_ids=[1])

    request_of(forced, {"eos_token_ids": [2], "__sglang_reasoning_in_grammar": True})
    with pytest.raises(InvalidParameter, match=r"^eos_token_ids of .*: expected a list"):
        request_of(forced, {"eos_token_ids": "2"})
    with pytest.raises(InvalidParameter, match="unknown parameter 'eos'; its parameters"):
        request_of(forced, {"eos": 2})


@each_request
def test_custom_params_that_are_no_dict_are_refused(ban, request_of):
    with pytest.raises(RequestError, match="custom_params: expected a dict, got list of 1"):
        request_of(ban, [1])


def test_a_second_processor_is_refused(ban):
    again = {"custom_logit_processor": "another"}

    for request_of in (ban.generate_body, ban.extra_body, lambda kw: ban.engine_kwargs(**kw)):
        with pytest.raises(RequestError, match="has one already"):
            request_of(again)


@pytest.mark.parametrize("params", ["text", 5, [None, "text"]])
def test_sampling_params_of_another_type_are_refused(ban, params):
    with pytest.raises(RequestError, match="sampling_params: expected a dict, got"):
        ban.engine_kwargs(params)


@pytest.mark.parametrize("request_of", [Attachment.generate_body, Attachment.extra_body])
def test_a_request_that_is_no_dict_is_refused(ban, request_of):
    with pytest.raises(RequestError, match="request: expected a dict, got 'text'"):
        request_of(ban, "text")


def test_attaching_builtins_loads_neither_torch_nor_sglang_nor_transformers_nor_dill():
    code = f"""
import sys
from sglang_lp.client import attach, attach_each
for name, params in {WORKING!r}.items():
    attached = attach(name, **params)
    attached.extra_body()
    attach_each([attached, None]).engine_kwargs()
print(*sys.modules)
"""
    report = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        text=True,
    )
    loaded = {name.partition(".")[0] for name in report.stdout.split()}

    assert "sglang_lp" in loaded
    assert not loaded & {"torch", "sglang", "transformers", "dill", "numpy"}


def test_a_processor_without_parameters_takes_none():
    class Bare(LogitProcessor):
        pass

    assert attach(Bare).custom_params == {}
    with pytest.raises(InvalidParameter, match="unknown parameter 'n'; its parameters: none"):
        attach(Bare, n=1)


def test_an_attachment_is_the_extra_body_of_the_openai_client(ban):
    import httpx
    import openai

    sent = []

    def answer(request):
        sent.append(json.loads(request.content))
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "choices": []})

    transport = httpx.MockTransport(answer)
    with openai.OpenAI(
        base_url="http://here/v1", api_key="k", http_client=httpx.Client(transport=transport)
    ) as client:
        for extra in (ban, ban.extra_body()):
            client.chat.completions.create(model="m", messages=[], extra_body=extra)

    assert sent[0] == sent[1]
    assert sent[0]["custom_params"] == {"token_ids": [3, 1]}


def test_an_attachment_unpacks_as_its_fields(ban):
    assert {**ban, "more": 1} == {**ban.extra_body(), "more": 1}
    assert dict(ban) == ban.extra_body()
