"""Fields that a client misspells or puts in the wrong place are refused with the right one."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front import places
from sglang_lp.server.front.places import BodyKeeper, check_generate, check_openai
from sglang_lp.server.gate.reserved_keys import BUDGET_FIELD

NAMES = [
    ("custom_logits_processor", "custom_logit_processor"),
    ("logit_processor", "custom_logit_processor"),
    ("logits_processors", "custom_logit_processor"),
    ("custom_param", "custom_params"),
]


def generated(body, path="/generate", **made):
    """Check the body of a request to ``/generate``.

    Args:
        body: As the client sends it.
        path: Of the endpoint.
        made: Fields that SGLang or the gate changed before the check.
    """
    parts = json.dumps(body).encode()
    messages = [
        {"type": "http.request", "body": parts[:9], "more_body": True},
        {"type": "http.request", "body": parts[9:]},
    ]

    async def app(_scope, receive, _send):
        while (await receive()).get("more_body"):
            pass
        known = {"custom_logit_processor": None, "sampling_params": None, **body, **made}
        check_generate(SimpleNamespace(**known))

    async def receive():
        return messages.pop(0)

    asyncio.run(BodyKeeper(app)({"type": "http", "path": path}, receive, None))


@pytest.mark.parametrize(("wrong", "right"), NAMES)
def test_a_misspelled_field_is_refused_with_its_name(wrong, right):
    for check in (check_openai, generated):
        with pytest.raises(RequestError, match=f"{wrong}: no such field; did you mean '{right}'"):
            check({"text": "a", wrong: "X"})
        check({"text": f"write {wrong}", wrong: None})


def test_the_argument_of_the_openai_client_is_no_field():
    for check in (check_openai, generated):
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
        generated({"custom_params": {"a": 1}})
    beside = {"sampling_params": [{"custom_params": {"b": 1}}, {}], "custom_params": {"a": 1}}
    with pytest.raises(RequestError, match="custom_params: expected in sampling_params on /gen"):
        generated(beside)
    for many in (inside, {"sampling_params": [{}, inside["sampling_params"]]}):
        with pytest.raises(RequestError, match="custom_logit_processor: expected at the top of"):
            generated(many)


def test_a_body_with_everything_in_its_place_passes():
    generated({"custom_logit_processor": "X", "sampling_params": {"custom_params": {"a": 1}}})
    generated({"text": ["a"], "sampling_params": [{"custom_params": {"a": 1}}, None]})
    generated({"custom_logits_processor": "X"}, path="/v1/other")
    for body in (None, [1], {}):
        check_openai(body)
    check_generate(SimpleNamespace())  # an engine without HTTP


@pytest.mark.parametrize("odd", [float("nan"), float("-inf"), "\ud83d"])
def test_a_body_is_read_as_sglang_reads_it(odd):
    generated({"text": odd, "custom_param": None})
    with pytest.raises(RequestError, match="extra_body"):
        generated({"text": odd, "extra_body": {"a": 1}})


@pytest.mark.parametrize(
    "samplings",
    [
        {"custom_params": {"a": 1}},
        [{"custom_params": {"a": n}} for n in (1, 2, 3)],
        [{"custom_params": {"a": 1}}, {"top_p": 1}, None],
        [{"custom_params": [1]}, {"custom_params": {"a": 1}}],
    ],
)
def test_a_list_with_all_parameters_in_their_place_is_parsed_once(samplings, monkeypatch):
    def parsed(_raw):
        pytest.fail("the body was parsed a second time")

    body = {"input_ids": [[1, 2], [3]], "custom_logit_processor": ["X"]}
    with monkeypatch.context() as patched:
        patched.setattr(places.json, "loads", parsed)
        generated({**body, "sampling_params": samplings})
    with pytest.raises(RequestError, match="custom_params: expected in sampling_params on /gen"):
        generated({**body, "sampling_params": samplings, "custom_params": {"a": 1}})


def test_parameters_in_the_wrong_place_are_found_in_what_sglang_and_the_gate_have_written():
    wrong = {"custom_params": {"a": 1}}
    one = {"custom_params": {"b": 1}}
    budget = {"custom_params": {BUDGET_FIELD: 5}}
    for sent, made in ((one, [one] * 4), (None, budget), ([{}, {}], [budget, {**budget}])):
        with pytest.raises(RequestError, match="custom_params: expected in sampling_params on"):
            generated({**wrong, "sampling_params": sent}, sampling_params=made)


def test_a_body_is_checked_once():
    async def app(_scope, receive, _send):
        await receive()
        obj = SimpleNamespace(custom_logit_processor=None, sampling_params={})
        with pytest.raises(RequestError):
            check_generate(obj)
        check_generate(obj)  # of another text of the same body

    async def receive():
        return {"type": "http.request", "body": b'{"extra_body": {"a": 1}}'}

    asyncio.run(BodyKeeper(app)({"type": "http", "path": "/generate"}, receive, None))


def test_a_body_with_too_many_levels_is_the_fault_of_the_client():
    deep = 100_000
    body = b'{"extra_body": ' + b"[" * deep + b"]" * deep + b"}"

    async def app(_scope, receive, _send):
        await receive()
        obj = SimpleNamespace(custom_logit_processor=None, sampling_params={})
        with pytest.raises(RequestError, match="expected JSON with fewer levels"):
            check_generate(obj)

    async def receive():
        return {"type": "http.request", "body": body}

    asyncio.run(BodyKeeper(app)({"type": "http", "path": "/generate"}, receive, None))
