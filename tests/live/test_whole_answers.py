"""Structured answers are complete at every limit from the shortest complete answer up."""

import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import orjson
import pytest

from sglang_lp.builtins import (
    BadWordsLogitProcessor,
    DisallowedTokensLogitsProcessor,
    ThinkingBudgetLogitProcessor,
)
from support.models.tiny_model import EOS
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
on_the_default_server = on_servers("default")
everywhere = on_servers(
    "default",
    "ngram chains, no overlap",
    "ngram trees, mixed chunks",
    "eagle chains",
    "squeezed",
    "two ranks",
    "two stages",
    "standalone trees, squeezed",
    "dflash",
    "dspark",
)

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3},
        "kind": {"enum": ["red", "green", "blue"]},
        "tags": {
            "type": "array",
            "items": {"type": "object", "properties": {"n": {"type": "integer"}}},
        },
    },
    "required": ["name", "kind", "tags"],
    "additionalProperties": False,
}
PATTERN = r"(zz|aaaaaaaaaaaa)[a-z]{3,}~[0-9]{2}-([A-Z]{2}|x)"
NESTED = 'root ::= "(" root ")" | "[" root "]" | "end"'


@pytest.fixture(scope="module")
def ids(tiny):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def is_record(text):
    jsonschema.validate(orjson.loads(text), RECORD)
    return True


def is_nested(text):
    opened = text.partition("end")[0]
    closed = {"(": ")", "[": "]"}
    return text == opened + "end" + "".join(closed[one] for one in reversed(opened))


CASES = {
    "json_schema": (orjson.dumps(RECORD).decode(), is_record),
    "regex": (PATTERN, lambda text: re.fullmatch(PATTERN, text) is not None),
    "ebnf": (NESTED, is_nested),
}


def ask(server, kind, limits, **more):
    """Return the replies to one list of requests, one for each limit."""
    params = {"whole_answer": True, **more.pop("params", {})}
    sampling = [
        {"max_new_tokens": limit, "temperature": 1, kind: CASES[kind][0], "custom_params": params}
        for limit in limits
    ]
    body = {"input_ids": [[5, 6, 7 + i] for i in range(len(limits))], "sampling_params": sampling}
    return server.post("/generate", {**body, **more})


def least(server, kind, **more):
    """Return the tokens of the shortest complete answer, as the refusal says them."""
    reply = ask(server, kind, [1], **more)
    assert reply.status == 400, reply.body
    return int(re.search(r"max_new_tokens of (\d+) or more", str(reply.body))[1])


@everywhere
@pytest.mark.parametrize("kind", CASES)
def test_an_answer_is_complete_at_every_limit(server, kind):
    fewest = least(server, kind)
    limits = [*range(fewest, fewest + 12), 48, 64]
    replies = ask(server, kind, limits)
    assert replies.status == 200, replies.body
    for limit, reply in zip(limits, replies.body, strict=True):
        meta = reply["meta_info"]
        assert meta["finish_reason"]["type"] == "stop", (limit, reply)
        assert meta["completion_tokens"] <= limit
        assert CASES[kind][1](reply["text"]), (limit, reply["text"])
        assert set(meta["sglang_lp"]) >= {"processors", "policy", "whole_answer"}


@on_servers("squeezed", "standalone trees, squeezed", "two ranks, ngram trees, squeezed")
def test_an_answer_is_complete_after_a_retraction(server):
    replies = ask(server, "json_schema", [120] * 16)
    assert replies.status == 200, replies.body
    assert any(reply["meta_info"]["num_retractions"] for reply in replies.body)
    for reply in replies.body:
        assert reply["meta_info"]["finish_reason"]["type"] == "stop"
        assert is_record(reply["text"]), reply


@on_the_default_server
def test_a_limit_below_the_shortest_answer_is_refused_with_that_number(server):
    fewest = least(server, "regex")
    assert ask(server, "regex", [fewest - 1]).status == 400
    assert ask(server, "regex", [fewest]).status == 200


@on_the_default_server
@pytest.mark.parametrize("named", [False, True])
def test_a_refused_stream_has_no_token(server, named):
    sampling = {"max_new_tokens": 2, "regex": PATTERN, "custom_params": {"whole_answer": True}}
    body = {"input_ids": [5], "sampling_params": sampling, "return_logprob": True}
    if named:
        body["custom_logit_processor"] = DisallowedTokensLogitsProcessor.to_str()
        sampling["custom_params"]["token_ids"] = [300]
    (event,) = server.stream("/generate", body).events
    assert event["meta_info"]["finish_reason"]["status_code"] == 400
    assert event["meta_info"]["completion_tokens"] == 0
    assert not event["text"]
    assert not event["output_ids"]


@on_the_default_server
def test_an_answer_that_ends_by_itself_is_not_led(server):
    schema = orjson.dumps({"enum": ["a", "b"]}).decode()
    sampling = {"max_new_tokens": 64, "temperature": 0, "json_schema": schema}
    plain = server.post("/generate", {"input_ids": [5], "sampling_params": sampling}).body
    sampling["custom_params"] = {"whole_answer": True}
    whole = server.post("/generate", {"input_ids": [5], "sampling_params": sampling}).body
    assert whole["output_ids"] == plain["output_ids"]
    assert whole["meta_info"]["sglang_lp"]["whole_answer"] == {"led_from": None}


@on_the_default_server
def test_an_answer_is_the_unled_one_up_to_the_token_from_which_it_is_led(server):
    schema = orjson.dumps({**RECORD, "properties": {**RECORD["properties"], "name": {}}}).decode()
    sampling = {"max_new_tokens": 48, "temperature": 0, "json_schema": schema}
    plain = server.post("/generate", {"input_ids": [5], "sampling_params": sampling}).body
    sampling["custom_params"] = {"whole_answer": True}
    whole = server.post("/generate", {"input_ids": [5], "sampling_params": sampling}).body
    led = whole["meta_info"]["sglang_lp"]["whole_answer"]["led_from"]
    assert led is not None
    assert led > 10
    assert whole["output_ids"][:led] == plain["output_ids"][:led]


@on_servers(
    "default", "ngram trees, mixed chunks", "eagle chains", "squeezed", "two ranks", "two stages"
)
@pytest.mark.parametrize("more", [{}, {"resumed_tokens": 1}], ids=["new", "resumed"])
def test_each_copy_is_complete(server, more):
    fewest = least(server, "json_schema")
    sampling = {"n": 3, "max_new_tokens": fewest + 3, "temperature": 1}
    params = {"whole_answer": True, **more}
    sampling |= {"json_schema": CASES["json_schema"][0], "custom_params": params}
    replies = server.post("/generate", {"input_ids": [5, 6], "sampling_params": sampling}).body
    assert len(replies) == 3
    assert all(is_record(reply["text"]) for reply in replies), replies


@on_the_default_server
def test_a_stream_is_complete(server):
    fewest = least(server, "json_schema")
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a record"}],
        "max_tokens": fewest + 3,
        "custom_params": {"whole_answer": True},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "record", "schema": RECORD},
        },
    }
    events = server.stream("/v1/chat/completions", chat).events
    choices = [event["choices"][0] for event in events if event.get("choices")]
    assert is_record("".join(choice["delta"].get("content") or "" for choice in choices))
    assert choices[-1]["finish_reason"] == "stop"


@on_the_default_server
def test_banned_tokens_are_counted_into_the_shortest_way(server, ids):
    token_ids = ids("x")
    more = {
        "custom_logit_processor": DisallowedTokensLogitsProcessor.to_str(),
        "params": {"token_ids": token_ids},
    }
    fewest = least(server, "regex", **more)
    assert fewest == least(server, "regex") + 1
    limits = [*range(fewest, fewest + 6), 40]
    replies = ask(server, "regex", limits, **more)
    assert replies.status == 200, replies.body
    for reply in replies.body:
        assert CASES["regex"][1](reply["text"]), reply
        assert not reply["text"].endswith("x")


@on_the_default_server
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"regex": None}, "json_schema, regex, ebnf or structural_tag"),
        ({"stop": ["~"]}, "stop"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"min_new_tokens": 30}, "min_new_tokens"),
        ({"stop_token_ids": [200]}, "stop_token_ids"),
        ({"custom_params": {"whole_answer": "yes"}}, "true or false"),
        ({"custom_params": {"whole_answer": True, "token_ids": [EOS]}}, "end token"),
    ],
)
def test_what_could_prevent_an_end_is_refused(server, change, words):
    sampling = {"max_new_tokens": 40, "regex": PATTERN, "custom_params": {"whole_answer": True}}
    body = {"input_ids": [5], "sampling_params": {**sampling, **change}}
    if "token_ids" in body["sampling_params"]["custom_params"]:
        body["custom_logit_processor"] = DisallowedTokensLogitsProcessor.to_str()
    reply = server.post("/generate", body)
    assert reply.status == 400
    assert words in str(reply.body)


@on_the_default_server
def test_a_ban_that_leaves_no_way_to_an_end_is_refused(server, ids):
    more = {
        "custom_logit_processor": DisallowedTokensLogitsProcessor.to_str(),
        "params": {"token_ids": ids("~")},
    }
    reply = ask(server, "regex", [40], **more)
    assert reply.status == 400
    assert "cannot complete" in str(reply.body)


@on_the_default_server
def test_a_processor_whose_bans_depend_on_the_text_is_refused(server):
    more = {
        "custom_logit_processor": BadWordsLogitProcessor.to_str(),
        "params": {"words": ["zz"]},
    }
    reply = ask(server, "regex", [40], **more)
    assert reply.status == 400
    assert "BadWordsLogitProcessor" in str(reply.body)


@on_servers("reasoning")
@pytest.mark.parametrize("budget", [None, {"thinking_budget": 5}, {"closing": "I stop here. "}])
def test_an_answer_behind_thinking_is_complete(server, budget):
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a record"}],
        "chat_template_kwargs": {"enable_thinking": True},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "record", "schema": RECORD},
        },
        "temperature": 1,
    }
    params = {"whole_answer": True, **(budget or {})}
    if budget is not None:
        chat["custom_logit_processor"] = ThinkingBudgetLogitProcessor.to_str()

    def one(limit):
        return server.post(
            "/v1/chat/completions", {**chat, "max_tokens": limit, "custom_params": params}
        )

    reply = one(1)
    assert reply.status == 400
    fewest = int(re.search(r"max_new_tokens of (\d+) or more", str(reply.body))[1])
    with ThreadPoolExecutor(8) as pool:
        for limit, reply in zip(
            limits := [*range(fewest, fewest + 8), 60, 90], pool.map(one, limits), strict=True
        ):
            assert reply.status == 200, (limit, reply.body)
            choice = reply.body["choices"][0]
            assert choice["finish_reason"] == "stop", (limit, choice)
            assert is_record(choice["message"]["content"]), (limit, choice)


TOOL = {
    "type": "function",
    "function": {"name": "record", "strict": True, "parameters": RECORD},
}


def a_call(thinks, choice, **more):
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "a record"}],
        "chat_template_kwargs": {"enable_thinking": thinks},
        "tools": [TOOL],
        "tool_choice": choice,
        "temperature": 1,
        "custom_params": {"whole_answer": True},
        **more,
    }


@on_servers("reasoning")
@pytest.mark.parametrize(
    ("choice", "thinks", "more"),
    [
        ("required", False, {}),
        ("required", True, {}),
        ({"type": "function", "function": {"name": "record"}}, False, {}),
        ({"type": "function", "function": {"name": "record"}}, True, {}),
        ("required", False, {"parallel_tool_calls": False}),
    ],
)
def test_a_tool_call_under_a_grammar_is_complete_at_every_limit(server, choice, thinks, more):
    chat = a_call(thinks, choice, **more)

    def one(limit, **more):
        return server.post("/v1/chat/completions", {**chat, "max_tokens": limit, **more})

    refused = one(1)
    assert refused.status == 400
    fewest = int(re.search(r"max_new_tokens of (\d+) or more", str(refused.body))[1])
    limits = [*range(fewest, fewest + 6), fewest + 30]
    with ThreadPoolExecutor(8) as pool:
        for limit, reply in zip(limits, pool.map(one, limits), strict=True):
            assert reply.status == 200, (limit, reply.body)
            (choice_,) = reply.body["choices"]
            assert choice_["finish_reason"] == "tool_calls", (limit, choice_)
            calls = choice_["message"]["tool_calls"]
            assert not more or len(calls) == 1
            for call in calls:
                assert is_record(call["function"]["arguments"]), (limit, choice_)


@on_servers("reasoning")
def test_one_call_behind_thinking_cannot_be_promised(server):
    # A call in the thoughts counts, and the grammar asks for a call behind them as well.
    chat = a_call(thinks=True, choice="required", parallel_tool_calls=False, max_tokens=120)
    reply = server.post("/v1/chat/completions", chat)
    assert reply.status == 400
    assert "parallel_tool_calls" in str(reply.body) or "ToolCallLimit" in str(reply.body)


@on_servers("decided")
def test_a_request_that_asks_for_nothing_is_served_where_the_operator_asks(server):
    params = {"max_new_tokens": 64, "temperature": 1, "regex": PATTERN}
    reply = server.post("/generate", {"input_ids": [5], "sampling_params": params})
    assert reply.status == 200, reply.body
    told = reply.body["meta_info"]["sglang_lp"]["whole_answer"]
    assert told["led_from"] is None
    assert "whose bans depend on the text" in told["not_led"]
    params["custom_params"] = {"whole_answer": True}
    reply = server.post("/generate", {"input_ids": [5], "sampling_params": params})
    assert reply.status == 400
