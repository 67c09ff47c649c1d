"""Fields that SGLang does not pass on are read where its front ends still have them."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt")

from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, ResponsesRequest
from sglang.srt.managers.io_struct import EmbeddingReqInput
from sglang.srt.parser.reasoning_parser import ReasoningParser

from sglang_lp import wire
from sglang_lp.errors import RequestError, shown
from sglang_lp.params import MAX_INT
from sglang_lp.policy import Rules
from sglang_lp.policy.adapt import Adapt
from sglang_lp.served_model import ServedModel
from sglang_lp.server.front.fields import FIELDS, At, Reader, is_read, take_max_thinking_tokens
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.reasoning_parser import reasoning_format
from sglang_lp.server.gate.reserved_keys import (
    BUDGET_FIELD,
    EFFORT,
    ROUTED,
    THOUGHT,
    add_own,
    check_origin,
    check_shape,
)
from sglang_lp.trust import Policy, Verifier
from sglang_lp.trust.audit import Asking, asking
from support.asked import asked_for

IDS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}
THINK = "ThinkingBudgetLogitProcessor"
PLAIN = Guard(Policy.default())
WITH_EFFORT = Guard(Policy(effort={"low": 4, "high": -1}))
WITH_VLLM = Guard(
    Policy(adapt=(Adapt(name="support.processors.foreign:TargetToken", interface="vllm-v1"),))
)


def serving(*, enabled=True, **fields):
    arguments = SimpleNamespace(enable_custom_logit_processor=enabled)
    manager = SimpleNamespace(server_args=arguments, tokenizer=None)
    return SimpleNamespace(tokenizer_manager=manager, **fields)


def read(body, custom_params=None, *, guard=PLAIN, enabled=True, payload=None, method="read_chat"):
    """Return ``custom_params`` of a request with this body."""
    request = SimpleNamespace(custom_params=custom_params, custom_logit_processor=payload)
    raw = SimpleNamespace(_json=body)
    getattr(Reader(guard), method)(serving(enabled=enabled), request, raw)
    assert request.custom_logit_processor == payload
    return request.custom_params


def kept(method, *args, custom_params=None, guard=WITH_EFFORT):
    """Return ``custom_params`` of sampling parameters that a form's hook read."""
    sampling = {"custom_params": custom_params}
    getattr(Reader(guard), method)(sampling, *args)
    return sampling["custom_params"]


def test_a_place_is_read_where_the_policy_needs_a_field_of_it():
    def places(guard):
        return {at for at in At if is_read(at, guard)}

    always = {At.CHAT, At.COMPLETION, At.RESPONSE, At.RESPONSE_FORM, At.OLLAMA}
    silent = Guard(Policy(effort={"fields": False}))
    assert places(silent) == always
    assert places(PLAIN) == always
    assert places(WITH_EFFORT) == {*At}


def test_every_name_of_the_table_is_unique_at_its_place():
    places = [(field.name, at) for field in FIELDS for at in field.at]

    assert len({*places}) == len(places)


def ollama(options, *, sampling=None, body=None, guard=WITH_EFFORT, **fields):
    """Return SGLang's sampling parameters of a body of Ollama's with these options."""
    request = SimpleNamespace(options=options, **fields)
    reader, sampling = Reader(guard), sampling or {}
    reader.keep_options(serving(), request, SimpleNamespace(_json=body))
    reader.read_options(sampling, serving(), request.options)
    return sampling


def test_options_of_ollamas_name_processors_budgets_and_efforts():
    named = {"custom_logit_processor": "A", "custom_params": {"token_ids": [1]}}
    found = ollama({"top_k": 5, **named}, sampling={"temperature": 0.5, "seed": 3})

    assert found["temperature"] == 0.5
    assert found["sampling_seed"] == 3
    assert "seed" not in found
    assert found["custom_params"]["token_ids"] == [1]
    assert found["custom_params"][ROUTED] == "A"
    assert ollama(None, think="high")["custom_params"] == {EFFORT: "high"}
    assert ollama({}) == {}


@pytest.mark.parametrize("name", ["custom_logit_processor", "custom_params", "thinking_budget"])
def test_what_ollamas_clients_have_in_options_is_refused_beside_them(name):
    why = (
        f"{name}: expected in options on this endpoint, got it at the top of the body; move it "
        "into options"
    )
    with pytest.raises(RequestError) as caught:
        ollama({}, body={name: {}})
    assert str(caught.value) == why
    assert ollama({}, body={name: None, "think": True}) == {}


def test_an_option_of_ollamas_has_the_type_of_sglangs_parameter():
    with pytest.raises(RequestError, match="temperature"):
        ollama({}, sampling={"temperature": "warm"})


def test_options_of_ollamas_that_no_hook_kept_name_nothing():
    for options in ({}, {"top_k": 5}, None):
        sampling = {"top_k": 5}
        Reader(WITH_EFFORT).read_options(sampling, serving(), options)
        assert sampling == {"top_k": 5}


@pytest.mark.parametrize("method", ["read_chat", "read_completion"])
@pytest.mark.parametrize(
    "named", [{"custom_logit_processor": "A"}, {"metadata": {wire.ENTRY: '{"processor": "A"}'}}]
)
def test_beams_are_refused_where_sglang_would_ignore_them(method, named):
    payload = named.get("custom_logit_processor")
    why = r"^beam_width: expected none .* leave it out, or send the request to /generate$"
    with pytest.raises(RequestError, match=why):
        read({**named, "beam_width": 2}, method=method, payload=payload)
    read({**named, "beam_width": 1}, method=method, payload=payload)
    assert read({"beam_width": 2}, method=method) is None, "it is SGLang's to ignore"


# Thinking budgets


@pytest.mark.parametrize(
    ("body", "budget"),
    [
        ({}, None),
        (None, None),
        ([1], None),
        ({"thinking_budget": None}, None),
        ({"thinking_budget": 0}, 0),
        ({"thinking_budget": -1}, -1),
        ({"thinking_budget": MAX_INT}, MAX_INT),
        ({"thinking_token_budget": 4}, 4),
        ({"thinking_budget_tokens": 4}, 4),
        ({"reasoning": {"max_tokens": 4, "effort": "low"}}, 4),
        ({"reasoning": {"effort": "low"}}, None),
        ({"reasoning": "low"}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 4}}, 4),
        ({"thinking": {"type": "disabled", "budget_tokens": 4}}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": True}, None),
        # In the order of the table.
        ({"thinking_budget_tokens": 9, "thinking_budget": 4}, 4),
        ({"thinking_token_budget": "wrong", "thinking_budget": 4}, 4),
        ({"thinking": {"budget_tokens": 9}, "reasoning": {"max_tokens": 4}}, 4),
        ({"thinking_budget": None, "thinking_token_budget": 4}, 4),
    ],
)
@pytest.mark.parametrize("method", ["read_chat", "read_completion"])
def test_a_budget_is_found_in_the_fields_of_clients(body, budget, method):
    found = read(body, method=method)

    assert (found or {}).get(BUDGET_FIELD) == budget


@pytest.mark.parametrize("value", ["512", 1.5, True, [4], MAX_INT + 1, 2**80])
def test_what_is_no_number_of_tokens_is_refused(value):
    why = f"expected a whole number of tokens, got {shown(value)}; give one, or leave it out"
    with pytest.raises(RequestError, match=f"^{re.escape(f'thinking_token_budget: {why}')}$"):
        read({"thinking_token_budget": value})
    with pytest.raises(RequestError, match=r"reasoning.max_tokens: expected a whole number"):
        read({"reasoning": {"max_tokens": value}})


def test_a_request_without_a_processor_gets_the_budgets():
    assert read({"thinking_budget": 4}) == {BUDGET_FIELD: 4}
    assert read({"thinking_budget": 4}, payload="X") == {BUDGET_FIELD: 4}
    routed = {"metadata": {"sglang_lp": "X"}, "thinking_budget": 4}
    assert read(routed) == {BUDGET_FIELD: 4, ROUTED: "X"}
    assert read({"thinking_budget": 4}, guard=WITH_EFFORT) == {BUDGET_FIELD: 4}
    assert read({}) is None


def test_a_server_that_runs_no_processors_is_left_alone():
    assert read({"thinking_budget": 4}, enabled=False) is None
    request, without = SimpleNamespace(custom_params=None, custom_logit_processor=None), serving()
    without.tokenizer_manager.server_args = SimpleNamespace()
    Reader(PLAIN).read_chat(without, request, SimpleNamespace(_json={"thinking_budget": 4}))
    assert request.custom_params is None


class Response(SimpleNamespace):
    metadata = reasoning = None


def test_the_budget_of_a_response_reaches_its_sampling_parameters():
    response, reader = Response(), Reader(PLAIN)
    reader.keep_response(serving(), response, SimpleNamespace(_json={"thinking_budget": 4}))
    sampling = {}
    reader.read_response_form(sampling, response)

    assert sampling["custom_params"] == {BUDGET_FIELD: 4}


def test_processor_and_parameters_of_a_response_reach_its_sampling_parameters():
    response, reader = Response(), Reader(PLAIN)
    body = {"custom_logit_processor": "X", "custom_params": {"a": 1}, "thinking_budget": 4}
    reader.keep_response(serving(), response, SimpleNamespace(_json=body))
    sampling = {"custom_params": add_own(None, EFFORT, "low")}
    reader.read_response_form(sampling, response)

    assert sampling["custom_params"] == {"a": 1, EFFORT: "low", ROUTED: "X", BUDGET_FIELD: 4}
    check_origin(sampling["custom_params"])


@pytest.mark.parametrize(
    ("body", "metadata", "why"),
    [
        ({"custom_logit_processor": "X"}, {"sglang_lp": "Y"}, "expected one processor, got anoth"),
        ({"custom_params": [1]}, None, "custom_params: expected an object, got list of 1"),
    ],
)
def test_a_response_that_says_something_else_is_refused(body, metadata, why):
    from fastapi import HTTPException

    response = Response(metadata=metadata)
    with pytest.raises(HTTPException, match=why):
        Reader(PLAIN).keep_response(serving(), response, SimpleNamespace(_json=body))


def test_processor_and_parameters_of_a_message_are_taken_from_its_body():
    body = {"custom_logit_processor": "X", "custom_params": {"a": 1}}
    for own in (None, add_own(None, EFFORT, "low")):
        chat = SimpleNamespace(custom_params=own, custom_logit_processor=None)
        Reader(PLAIN).read_chat(serving(), chat, SimpleNamespace(_json=body))

        assert chat.custom_logit_processor == "X"
        assert chat.custom_params == {"a": 1, **(own or {})}
        check_origin(chat.custom_params)
    spoofed = SimpleNamespace(
        custom_params=add_own(None, EFFORT, "low"), custom_logit_processor=None
    )
    body = SimpleNamespace(_json={"custom_params": {EFFORT: "high"}})
    Reader(PLAIN).read_chat(serving(), spoofed, body)
    with pytest.raises(RequestError, match="is SGLang's own"):
        check_origin(spoofed.custom_params)


def test_a_chat_in_which_sglang_keeps_processor_and_parameters_is_left_as_it_is():
    for params in ({"a": 1}, {EFFORT: "low"}):
        chat = SimpleNamespace(custom_params={**params}, custom_logit_processor="X")
        body = SimpleNamespace(_json={"custom_logit_processor": "X", "custom_params": params})
        before = chat.custom_params
        Reader(PLAIN).read_chat(serving(), chat, body)

        assert chat.custom_params is before


def test_the_wrong_budget_of_a_response_is_the_clients_fault():
    from fastapi import HTTPException

    body = SimpleNamespace(_json={"thinking_budget": "4"})
    with pytest.raises(HTTPException, match="expected a whole number") as refusal:
        Reader(PLAIN).keep_response(serving(), Response(), body)
    assert refusal.value.status_code == 400


def rules_of(**decisions):
    rules = Rules(Policy(**decisions), Verifier(Policy.default()).resolve)
    rules.fit(ServedModel(None, 50))
    return rules


def test_a_field_counts_without_any_decision_and_after_the_parameter():
    served = ServedModel(None, 50)
    rules = rules_of()

    assert rules.decide(asked_for(THINK, IDS, 4), served).links[0].params.thinking_budget == 4
    own = {**IDS, "thinking_budget": 7}
    assert rules.decide(asked_for(THINK, own, 4), served).links[0].params.thinking_budget == 7


def test_the_operator_can_leave_the_fields_to_sglang():
    assert rules_of().reads_fields
    off = rules_of(effort={"fields": False})
    assert not off.reads_fields
    assert off.is_empty
    assert not off.reads_effort


def served(preferred=None):
    return SimpleNamespace(preferred_sampling_params=preferred)


def test_max_thinking_tokens_is_taken_before_sglang_refuses_it():
    for samplings in (None, {"top_p": 1}, [{"custom_params": {"a": 1}}, None]):
        obj = SimpleNamespace(max_thinking_tokens=9, sampling_params=samplings)
        take_max_thinking_tokens(served(), obj)
        assert obj.max_thinking_tokens is None
        made = obj.sampling_params
        for one in made if isinstance(made, list) else [made]:
            assert one["custom_params"][BUDGET_FIELD] == 9
            check_origin(one["custom_params"])
    for tokens, samplings in ((None, {}), ("9", {}), (9, [3])):
        obj = SimpleNamespace(max_thinking_tokens=tokens, sampling_params=samplings)
        take_max_thinking_tokens(served(), obj)
        assert (obj.max_thinking_tokens, obj.sampling_params) == (tokens, samplings)


@pytest.mark.parametrize("many", [False, True])
def test_max_thinking_tokens_joins_the_parameters_of_each_text(many):
    own = [{"top_p": 1, "custom_params": {"a": 1}}, {"custom_params": {"b": 2}}]
    obj = SimpleNamespace(max_thinking_tokens=9, sampling_params=own if many else own[0])
    take_max_thinking_tokens(served({"custom_params": {"dry_base": 2}}), obj)

    first = {"top_p": 1, "custom_params": {"a": 1, BUDGET_FIELD: 9}}
    second = {"custom_params": {"b": 2, BUDGET_FIELD: 9}}
    assert obj.sampling_params == ([first, second] if many else first)


def test_a_request_for_an_embedding_has_no_thinking_budget():
    obj = EmbeddingReqInput(text="a")
    take_max_thinking_tokens(served(), obj)

    assert obj == EmbeddingReqInput(text="a")


def test_parameters_that_the_server_prefers_stay_beside_a_budget_field():
    obj = SimpleNamespace(max_thinking_tokens=9, sampling_params={"top_p": 1})
    take_max_thinking_tokens(served({"custom_params": {"dry_base": 2}}), obj)

    assert obj.sampling_params["custom_params"] == {"dry_base": 2, BUDGET_FIELD: 9}


# Levels of effort


def test_efforts_are_kept_where_no_client_can_send_them():
    for level in ("none", "low", "max"):
        found = kept("read_chat_form", SimpleNamespace(reasoning_effort=level))
        check_origin(found)
        check_shape({**found}, None)
        assert found == {EFFORT: level}
    for level in (None, 0.5, "unknown", ["low"]):
        assert kept("read_chat_form", SimpleNamespace(reasoning_effort=level)) is None
    response = Response(reasoning=SimpleNamespace(effort="low"))
    assert kept("read_response_form", response, custom_params={"a": 1}) == {
        "a": 1,
        EFFORT: "low",
    }
    assert kept("read_response_form", Response()) is None
    assert kept("read_response_form", response, guard=PLAIN) is None


def test_what_a_client_sends_in_their_place_is_refused():
    for key, value in ((EFFORT, "high"), (BUDGET_FIELD, 1)):
        chat = SimpleNamespace(reasoning_effort="low")
        found = kept("read_chat_form", chat, custom_params={key: value})
        with pytest.raises(RequestError, match="is SGLang's own"):
            check_origin(found)
    for wrong in ({EFFORT: "much"}, {EFFORT: 1}, {BUDGET_FIELD: "1"}, {BUDGET_FIELD: True}):
        with pytest.raises(RequestError):
            check_shape(wrong, None)


@pytest.mark.parametrize(("body", "found"), [({"reasoning_effort": "low"}, {EFFORT: "low"})])
def test_completions_are_read_from_the_body_that_was_parsed(body, found):
    asking = {"guard": WITH_EFFORT, "method": "read_completion"}
    assert read(body, **asking) == found
    for nothing in (None, [1], {"reasoning_effort": 3}):
        assert read(nothing, **asking) is None


def test_the_effort_of_anthropics_clients_is_kept():
    message = SimpleNamespace(output_config=SimpleNamespace(effort="xhigh"))
    made = SimpleNamespace(custom_params={"a": 1})
    Reader(WITH_EFFORT).read_message(made, None, message)

    assert made.custom_params == {"a": 1, EFFORT: "xhigh"}
    check_origin(made.custom_params)
    # What becomes of it in the chat endpoint does not replace it.
    chat = SimpleNamespace(reasoning_effort="max")
    assert kept("read_chat_form", chat, custom_params=made.custom_params) == made.custom_params


# vLLM's field for parameters


def xargs(body, custom_params=None):
    return read(body, custom_params, guard=WITH_VLLM)


def test_xargs_are_parameters_beside_those_of_custom_params():
    given = {"a": 1, "b": [2, 3]}

    assert xargs({"vllm_xargs": given}) == given
    assert xargs({"vllm_xargs": given}, {"c": 4}) == {**given, "c": 4}
    assert given == {"a": 1, "b": [2, 3]}
    assert read({"vllm_xargs": given}) is None, "no class of vLLM's is allowed"


@pytest.mark.parametrize("body", [{}, {"vllm_xargs": None}, [1], None])
def test_a_body_without_them_is_left_alone(body):
    own = {"a": 1}

    assert xargs(body, own) is own
    # A program that calls SGLang's front end itself.
    Reader(WITH_VLLM).read_chat(serving(), SimpleNamespace(), None)


@pytest.mark.parametrize("given", [5, "a", [1]])
def test_something_else_than_parameters_is_refused(given):
    with pytest.raises(RequestError, match="vllm_xargs: expected an object"):
        xargs({"vllm_xargs": given})


def test_a_parameter_that_is_given_twice_is_refused():
    with pytest.raises(RequestError, match="'a' is given inside it and outside"):
        xargs({"vllm_xargs": {"a": 1}}, {"a": 1})


def test_what_sglang_added_stays_sglangs_and_the_clients_own_does_not_become_so():
    kept = xargs({"vllm_xargs": {"a": 1}}, add_own({"b": 2}, EFFORT, "low"))

    assert kept == {"a": 1, "b": 2, EFFORT: "low"}
    check_origin(kept)
    with pytest.raises(RequestError, match="is SGLang's own"):
        check_origin(xargs({"vllm_xargs": {EFFORT: "low"}}, {"b": 2}))


# Chats that continue an answer: the client's beginning may already end the thoughts


def chat(content, *, role="assistant", **fields):
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "?"}]
    messages = [*asked, {"role": role, "content": content}]
    fields = {"model": "m", "messages": messages, "continue_final_message": True, **fields}
    return ChatCompletionRequest(**fields)


def continued(content, parser="qwen3", **fields):
    request = chat(content, **fields)
    guard = Guard(Policy.default())
    guard.server.reasoning = reasoning_format(parser, None)
    Reader(guard).read_chat(serving(reasoning_parser=parser), request)
    return request.custom_params


@pytest.mark.parametrize("content", ["<think>ab</think>c", "</think>", "<think>\n\n</think>\n\n"])
def test_an_answer_whose_thoughts_have_ended_is_marked(content):
    found = continued(content)
    assert found == {THOUGHT: True}
    check_origin(found)
    check_shape(found, None)
    assert continued(content, custom_params={"a": 1}) == {"a": 1, THOUGHT: True}


@pytest.mark.parametrize(
    "content", ["", "<think>ab", "ab", "ab</think", None, [{"type": "text", "text": "</think>"}]]
)
def test_an_answer_that_may_still_think_is_not(content):
    assert continued(content) is None


def test_what_is_not_continued_is_left_alone():
    assert continued("a</think>", role="user") is None
    assert continued("a</think>", continue_final_message=False) is None
    assert continued("a</think>", parser=None) is None
    assert continued("a", parser="kimi") is None, "it reads no text as reasoning without a start"
    assert continued("", messages=[]) is None, "SGLang refuses it"


# A parser may look for another end, or for none: a mark then would lift every ceiling.
@pytest.mark.parametrize("effort", ["high", "medium", "low"])
@pytest.mark.parametrize("parser", sorted({*ReasoningParser.DetectorMap} - {"response_template"}))
def test_no_answer_is_marked_that_its_parser_returns_as_reasoning(parser, effort):
    kwargs = {"reasoning_effort": effort}
    form = reasoning_format(parser, None)
    for end in {one.end for one in (form, *form.others)}:
        if not continued(f"a{end}b", parser, chat_template_kwargs=kwargs):
            continue
        request = chat(f"a{end}b", chat_template_kwargs=kwargs)
        for streamed in (False, True):
            one = ReasoningParser(parser, force_reasoning=True, request=request)
            said = one.parse_stream_chunk("xyz") if streamed else one.parse_non_stream("xyz")
            assert not said[0], end


def test_a_parser_that_does_not_look_back_is_counted_on():
    assert continued("a<|END_THINKING|>b", "cohere_command4") is None
    other = {"chat_template_kwargs": {"reasoning_effort": "low"}}
    assert continued("a</ifm|think>b", "k2_horizon", **other) is None
    assert continued("a</ifm|think_faster>b", "k2_horizon", **other) == {THOUGHT: True}


@pytest.mark.parametrize(("end", "found"), [("</think:own>", {THOUGHT: True}), ("</think>", None)])
def test_the_end_of_thoughts_is_the_one_in_the_served_tokenizer(end, found):
    tokenizer = SimpleNamespace(get_vocab=lambda: {"<think:own>": 1, "</think:own>": 2})
    guard, server = Guard(Policy.default()), serving(reasoning_parser="hunyuan")
    guard.server.reasoning = reasoning_format("hunyuan", tokenizer)
    server.tokenizer_manager.tokenizer = tokenizer
    request = chat(f"a{end}b")
    Reader(guard).read_chat(server, request)

    assert request.custom_params == found


def test_a_field_that_is_refused_is_counted_once():
    guard = Guard(Policy.default())
    for body in ({"min_tokens": "a"}, {"bad_words": 5}):
        with pytest.raises(RequestError):
            read(body, guard=guard)

    assert sum(guard.audit.counts.values()) == 2


def test_the_audit_trail_names_the_endpoint_of_a_body_that_another_thread_reads(caplog):
    from fastapi import HTTPException

    reader = Reader(Guard(Policy.default()))
    chat = SimpleNamespace(custom_params=None, custom_logit_processor=None)

    def read_in_thread(path, method, request):
        raw = SimpleNamespace(_json={"bad_words": 5}, scope={"route": SimpleNamespace(path=path)})
        with pytest.raises((RequestError, HTTPException)):
            thread.submit(getattr(reader, method), serving(), request, raw).result()
        return thread.submit(asking.get).result()

    bodies = {
        "/v1/chat/completions": ("read_chat", chat),
        "/v1/messages": ("read_chat", chat),
        "/v1/responses": ("keep_response", ResponsesRequest(input="a")),
        "/api/chat": ("keep_options", SimpleNamespace(options={})),
    }
    with ThreadPoolExecutor(1) as thread:
        assert {read_in_thread(path, *body) for path, body in bodies.items()} == {Asking()}
    assert [json.loads(line)["endpoint"] for line in caplog.messages] == [*bodies]
