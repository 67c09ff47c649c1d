"""Thinking is what a served reasoning parser returns as reasoning, and a ceiling on it holds."""

import json
import re

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.client.answers import HEADER
from support.scripted import Scripted
from support.servers import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900), on_servers("reasoning")]

CEILING = 20
START, END, TOOL = "<think>", "</think>", "<tool_call>"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]
THINK = ThinkingBudgetLogitProcessor.__name__
SCRIPTED = f"{Scripted.__module__}:{Scripted.__qualname__}"


@pytest.fixture(scope="module")
def encode(tiny):
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def count(text):
    """Return of how many tokens of the tiny model a text is made up: its words, or characters."""
    return len(re.findall(r" w\d+|.", text, re.DOTALL))


def ask(server, **fields):
    """Ask for a chat, and return the reply."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "#"}],
        "temperature": 0,
        "max_tokens": 80,
        **fields,
    }
    send = server.stream if body.get("stream") else server.post
    return send("/v1/chat/completions", body)


def messages_of(reply):
    """Return the messages of a chat: a list of the parts of each choice."""
    assert reply.status == 200, reply.body
    parts = {}
    for event in reply.events or [reply.body]:
        for choice in event.get("choices", ()):
            parts.setdefault(choice["index"], []).append(choice.get("delta") or choice["message"])
    return [parts[index] for index in sorted(parts)]


def thoughts_of(server, **fields):
    """Return the reasoning of each choice of a chat."""
    messages = messages_of(ask(server, **fields))
    return ["".join(one.get("reasoning_content") or "" for one in parts) for parts in messages]


def scripted(encode, text, budget=None):
    """Return what has the model say this, with a budget beside it."""
    params = {"chain": [SCRIPTED, THINK], "0.script": encode(text)}
    if budget is not None:
        params["1.thinking_budget"] = budget
    return {"custom_logit_processor": "ChainLogitProcessor", "custom_params": params}


# What counts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", [f"{START}abcdefghij", "abcdefghij"])
@pytest.mark.parametrize("budget", [0, 1, 3, 9])
def test_a_chat_thinks_what_its_budget_says_with_a_start_and_without(
    server, encode, text, budget, stream
):
    thought = thoughts_of(server, stream=stream, **scripted(encode, text * 3, budget))[0]

    # The newline before the end is reasoning to SGLang; "<t" may begin a tool call.
    assert count(thought) <= budget + 1 + 2 * (START in text)


# A ceiling that holds


words = st.text(st.sampled_from("abc \n<>/"), max_size=40)
pieces = st.sampled_from([START, END, TOOL, "\n", START * 3, "<thi", "</", "x" * 30]) | words
texts = st.lists(pieces, min_size=1, max_size=6).map("".join)


@st.composite
def asked(draw):
    """Compose a request of everything that a client may send about its thinking."""
    own = {
        "thinking_budget": draw(st.sampled_from([None, -1, 0, 5, 19, 20, 21, 10_000])),
        "closing": draw(st.none() | st.sampled_from(["ab", "so: " * 4, "x" * 300])),
        "soft_thinking_budget": draw(st.sampled_from([None, 0, 5])),
        "total_thinking_tokens": draw(st.sampled_from([None, 3, 100])),
        "max_pattern_size": draw(st.sampled_from([None, 8])),
        "force_reasoning": draw(st.booleans()),
    }
    own = {name: value for name, value in own.items() if value is not None}
    form = draw(st.sampled_from(["none", "own", "chain", "profile", "bare", "field"]))
    fields = {
        "stream": draw(st.booleans()),
        "temperature": draw(st.sampled_from([0, 1])),
        "n": draw(st.sampled_from([1, 2])),
    }
    if draw(st.booleans()):
        fields["messages"] = [
            {"role": "user", "content": "#"},
            {"role": "assistant", "content": draw(texts)},
        ]
        fields["continue_final_message"] = True
    return form, own, draw(texts), fields, draw(st.sampled_from([None, "<", "x", " "]))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(request=asked())
@example(request=("own", {"thinking_budget": 20, "closing": "x" * 300}, "", {}, None))
@example(request=("chain", {"thinking_budget": 20}, START * 30, {}, None))
def test_no_request_thinks_more_than_the_ceiling(server, encode, request):
    form, own, text, fields, biased = request
    if biased is not None:
        fields = {**fields, "logit_bias": {str(encode(biased)[0]): 20}}
    reply = ask(server, **fields, **sent(form, own, text, encode))
    if reply.status == 400:
        return  # which is one way to hold
    for parts in messages_of(reply):
        thought = "".join(one.get("reasoning_content") or "" for one in parts)
        # A tool start that was begun may stand at the end of it.
        assert count(thought) <= CEILING + len(TOOL), thought


def sent(form, own, text, encode):
    """Return the fields that ask for a budget, in one of the ways to do so."""
    match form:
        case "own":
            return {"custom_logit_processor": THINK, "custom_params": own}
        case "chain":
            links = {f"1.{name}": value for name, value in own.items()}
            chain = {"chain": [SCRIPTED, THINK], "0.script": encode(text)}
            return {
                "custom_logit_processor": "ChainLogitProcessor",
                "custom_params": {**chain, **links},
            }
        case "profile":
            known = {k: v for k, v in own.items() if k in ("thinking_budget", "closing")}
            return {"custom_logit_processor": "brief", "custom_params": known}
        case "bare":
            return {"custom_params": {"thinking_budget": own.get("thinking_budget")}}
        case "field":
            return {"thinking_token_budget": own.get("thinking_budget")}
    return {}


# Tool calls


NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
def test_a_call_that_comes_back_is_whole_at_every_budget(server, encode, choice, stream):
    called = 0
    for budget in range(len("abcdef") + 14):
        reply = ask(
            server,
            max_tokens=200,
            tools=TOOLS,
            tool_choice=choice,
            stream=stream,
            **scripted(encode, f"abcdef{CALL}", budget),
        )
        (parts,) = messages_of(reply)
        calls = [call for one in parts for call in one.get("tool_calls") or ()]
        called += bool(calls)
        arguments = {}
        for place, call in enumerate(calls):
            index = call["index"] if stream else place
            more = call["function"].get("arguments") or ""
            arguments[index] = arguments.get(index, "") + more
        for one in arguments.values():
            known = json.loads(one)
            # A required call is a grammar's; SGLang's leaves the arguments to the model.
            assert choice != "auto" or known == {"a": 2, "b": 3}, f"{budget}: {one}"
    assert called, "no budget let a call through"


# Clients' fields


FIELDS = [
    {"thinking_budget": 4},
    {"thinking_token_budget": 4},
    {"thinking_budget_tokens": 4},
    {"reasoning": {"max_tokens": 4}},
    {"thinking": {"type": "enabled", "budget_tokens": 4}},
    {"thinking_budget": 4, "thinking_token_budget": 9},
]


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_a_field_of_a_client_is_a_budget_in_chats(server, field):
    for stream in (False, True):
        (thought,) = thoughts_of(server, **field, stream=stream)
        assert count(thought) <= 5


@pytest.mark.parametrize("field", FIELDS[:3], ids=str)
def test_a_field_of_a_client_is_read_on_completions_and_responses(server, field):
    for path, body in (
        ("/v1/completions", {"prompt": START, "max_tokens": 40}),
        ("/v1/responses", {"input": "#", "max_output_tokens": 40}),
    ):
        asked = {"model": "tiny", "temperature": 0, **body, **field}
        answer = httpx.post(server.url + path, json=asked, trust_env=False, timeout=120)
        assert answer.status_code == 200, answer.text
        assert answer.headers[HEADER] == THINK
        refused = server.post(path, {"model": "tiny", **body, next(iter(field)): "many"})
        assert refused.status == 400
        assert f"{next(iter(field))}: expected a whole number" in str(refused.body)


def test_a_field_is_read_on_anthropics_messages(server):
    # SGLang takes Anthropic's own from 1,024 on, more than the ceiling here.
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "#"}],
        "max_tokens": 80,
        "temperature": 0,
    }

    plain = server.post("/v1/messages", body)
    asked = server.post("/v1/messages", {**body, "thinking_budget": 5})

    def thought(reply):
        assert reply.status == 200, reply.body
        blocks = [one for one in reply.body["content"] if one["type"] == "thinking"]
        return count("".join(one["thinking"] for one in blocks))

    assert thought(asked) <= 6 < thought(plain)


# What is said about it


ENDPOINTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "#"}], "max_tokens": 80},
    "/v1/completions": {"prompt": START, "max_tokens": 80},
    "/v1/responses": {"input": "#", "max_output_tokens": 80},
}


def reported(reply):
    """Return the reports of an answer, and what SGLang says of its reasoning."""
    assert reply.status == 200, reply.body
    events = reply.events or [reply.body]
    last = events[-1].get("response") or events[-1]
    if last["object"] == "response":
        return [last["meta_info"]], last["usage"]["output_tokens_details"]["reasoning_tokens"]
    usage = next(event["usage"] for event in events if event.get("usage"))
    ordered = sorted(last["choices"], key=lambda choice: choice["index"])
    return [choice["meta_info"] for choice in ordered], usage["reasoning_tokens"]


@pytest.mark.parametrize("budget", [0, 3, 9])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_an_answer_has_its_report_and_it_agrees_with_what_sglang_counts(
    server, path, stream, budget
):
    body = {"model": "tiny", "temperature": 0, "thinking_budget": budget, **ENDPOINTS[path]}
    if stream and "responses" not in path:
        body["stream_options"] = {"include_usage": True}

    plain = (server.stream if stream else server.post)(path, body)
    reply = (server.stream if stream else server.post)(path, {**body, "return_meta_info": True})

    assert "sglang_lp" not in str(plain.body)
    (meta_info,), counted = reported(reply)
    (block, *_) = meta_info["sglang_lp"]["thinking"]
    assert block["ended"] == "budget"
    assert budget <= block["tokens"] <= budget + 1
    # SGLang counts the tokens of the end, too, here one for each character; and no completions.
    assert counted == (0 if path == "/v1/completions" else block["tokens"] + len(END))


@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_the_report_of_its_own_answer(server, stream):
    fields = {"prompt": [START, "#"], "n": 2, "return_meta_info": True, "thinking_budget": 4}
    body = {"model": "tiny", "temperature": 1, "max_tokens": 20, **fields}

    reply = (server.stream if stream else server.post)("/v1/completions", body)

    events = reply.events or [reply.body]
    reports = [one["meta_info"]["sglang_lp"] for one in events[-1]["choices"]]
    ended = [[block["ended"] for block in one["thinking"]][:1] for one in reports]
    assert ended == [["budget"]] * 2 + [[]] * 2


def test_the_report_of_a_chat_counts_what_sglang_returns_as_reasoning(server):
    reply = ask(server, thinking_budget=5, return_meta_info=True)

    ((message,),) = messages_of(reply)
    (block, *_) = reply.body["choices"][0]["meta_info"]["sglang_lp"]["thinking"]
    assert count(message["reasoning_content"]) in (block["tokens"], block["tokens"] - 1)


# Beside a grammar

SCHEMA = {
    "type": "object",
    "properties": {"sheep": {"enum": [1, 2]}},
    "required": ["sheep"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 5, 20])
def test_a_grammar_begins_where_the_budget_closed_the_block(server, budget, stream):
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}

    reply = ask(server, thinking_budget=budget, response_format=form, max_tokens=200, stream=stream)

    (parts,) = messages_of(reply)
    thought = "".join(one.get("reasoning_content") or "" for one in parts)
    said = "".join(one.get("content") or "" for one in parts)
    assert count(thought) <= budget + 1
    assert json.loads(said)["sheep"] in (1, 2)


# Truncation


@pytest.mark.parametrize("budget", [1, 2, 5, 20])
def test_an_answer_can_end_with_its_budget(server, budget):
    params = {"thinking_budget": budget, "at_limit": "stop"}

    reply = ask(server, custom_logit_processor=THINK, custom_params=params, return_meta_info=True)

    assert reply.status == 200, reply.body
    (choice,) = reply.body["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["meta_info"]["finish_reason"] == {
        "type": "length",
        "length": budget,
        "reason": "thinking budget",
    }
    assert reply.body["usage"]["completion_tokens"] == budget
    (block,) = choice["meta_info"]["sglang_lp"]["thinking"]
    assert block == {"tokens": budget, "ended": "budget"}
