"""A ceiling holds on the reasoning that the served reasoning parser returns."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sglang.srt.parser.reasoning_parser import ReasoningParser
from transformers import AutoTokenizer

from sglang_lp import wire
from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.client import attach, probabilities
from sglang_lp.wire.names import HEADER
from support.models.tiny_model import EOS
from support.oracles.greedy import TOLERANCE
from support.processors.scripted import Scripted
from support.servers import asking
from support.servers.configurations import on_servers

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
CHAT, GENERATE = "/v1/chat/completions", "/generate"
CHAIN = "ChainLogitProcessor"
THINK = ThinkingBudgetLogitProcessor.__name__
SCHEMA = {
    "type": "object",
    "properties": {"sheep": {"enum": [1, 2]}},
    "required": ["sheep"],
    "additionalProperties": False,
}
SCRIPTED = f"{Scripted.__module__}:{Scripted.__qualname__}"


@pytest.fixture(scope="module")
def encode(tiny):
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def count(text):
    """Return the number of the tiny model's tokens in a text: its words, or characters."""
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
    """Return fields that make the model say a text, with or without a budget."""
    params = {"chain": [SCRIPTED, THINK], "0.script": encode(text)}
    if budget is not None:
        params["1.thinking_budget"] = budget
    return {"custom_logit_processor": CHAIN, "custom_params": params}


# Phases


@pytest.mark.parametrize("where", ["thinking", "answer"])
@pytest.mark.parametrize("text", ["ab", f"ab{START}cd"])
def test_one_phase_is_sampled_at_a_temperature_of_its_own(server, oracle, encode, text, where):
    prompt = encode(text)
    cool = attach("TemperatureLogitProcessor", temperature=0.4, where=where)
    asked = cool.generate_body(asking.body(prompt, temperature=1.6, max_new_tokens=10))

    reply = server.post(GENERATE, {**asked, "return_logprob": True})

    holds = (START in text) == (where == "thinking")
    rows = oracle.logits(prompt, reply.output_ids) / (0.4 if holds else 1.6)
    told = [logprob for logprob, *_ in reply.body["meta_info"]["output_token_logprobs"]]
    expected = [
        float(row.log_softmax(-1)[token_id])
        for row, token_id in zip(rows, reply.output_ids, strict=True)
    ]
    assert told == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("text", ["ab", f"ab{START}cd"])
def test_a_stop_string_that_thoughts_may_not_have_ends_only_the_answer(server, encode, text):
    likelier = {"300": 50.0}  # " w300"
    sampling = {"stop": ["w300"], "logit_bias": likelier, "max_new_tokens": 9, "ignore_eos": True}
    think = attach("BadWordsLogitProcessor", words=["w300"], where="thinking")

    reply = server.post(GENERATE, think.generate_body(asking.body(encode(text), **sampling)))

    assert reply.finish_reason["type"] == ("length" if START in text else "stop")
    assert "w300" not in reply.body["text"]


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


BEGUN = [f"{START}ab{END}so ", f"{START}\n\n{END}\n\n", f"a{END}"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", BEGUN, ids=repr)
def test_nothing_is_forced_in_an_answer_that_goes_on_after_its_thoughts(
    server, encode, begun, stream
):
    messages = [{"role": "user", "content": "#"}, {"role": "assistant", "content": begun}]
    fields = {"messages": messages, "continue_final_message": True, "stream": stream}

    for said in (scripted(encode, "x" * 40, 5), {}):  # with and without a budget of the request
        (parts,) = messages_of(ask(server, max_tokens=40, **fields, **said))
        text = "".join(one.get("content") or "" for one in parts)
        assert not any(one.get("reasoning_content") for one in parts)
        assert END not in text
        assert not said or text == "x" * 40


@pytest.mark.parametrize("text", [f"{START}aя{TOOL}яb", "aя</think>яb"])
def test_a_script_is_banned_in_what_the_parser_takes_for_the_answer(server, encode, text):
    params = {"chain": [SCRIPTED, "ScriptLogitProcessor"], "0.script": encode(text)}
    params |= {"1.scripts": ["Cyrillic"], "1.mode": "ban", "1.where": "answer"}

    reply = ask(server, max_tokens=60, custom_logit_processor=CHAIN, custom_params=params)

    ((message,),) = messages_of(reply)
    assert message["reasoning_content"].count("я") == 1
    assert "я" not in message["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_in_the_answer_leaves_the_thoughts_as_they_are(server, encode, stream):
    params = {"chain": [SCRIPTED, "ChoiceLogitProcessor"], "0.script": encode(f"ab{END}")}
    params |= {"1.choices": ["yes", "no"]}
    fields = {"custom_logit_processor": CHAIN, "n": 2, "stream": stream}

    for where in ({}, {"1.where": "answer"}, {"1.where": "everywhere"}):
        reply = ask(server, custom_params={**params, **where}, **fields)
        for parts in messages_of(reply):
            thought = "".join(one.get("reasoning_content") or "" for one in parts)
            content = "".join(one.get("content") or "" for one in parts)
            if where == {"1.where": "everywhere"}:
                assert (thought in ("yes", "no"), content) == (True, "")
            else:
                assert (thought, content in ("yes", "no")) == ("ab", True)


OF_CONTENT = {
    "AllowedTokensLogitProcessor": ({"texts": ["w", "y"]}, r"[wy]*"),
    "ChoiceLogitProcessor": ({"choices": ["yes", "no"]}, "yes|no"),
    "ForcedSequenceLogitProcessor": ({"text": "yes w"}, "yes w.*"),
    "ForcedWordsLogitProcessor": ({"words": ["w300"], "within_tokens": 8}, ".*w300.*"),
}


@pytest.mark.parametrize("name", OF_CONTENT)
def test_a_rule_of_the_content_holds_behind_the_thoughts_and_elsewhere_at_once(
    server, encode, name
):
    own, expected = OF_CONTENT[name]
    params = {"chain": [SCRIPTED, name], "0.script": encode(f"ab{END}")}
    params |= {f"1.{key}": value for key, value in own.items()}
    fields = {"custom_logit_processor": CHAIN, "custom_params": params}

    reply = ask(server, max_tokens=24, return_meta_info=True, **fields)
    ((message,),) = messages_of(reply)
    assert message["reasoning_content"] == "ab"
    assert re.fullmatch(expected, message["content"], re.DOTALL)
    report = reply.body["choices"][0]["meta_info"]["sglang_lp"]
    assert report["where"] == ["everywhere", "answer", "everywhere"]

    # Nothing splits an answer here.
    alone = attach(name, **own).generate_body(asking.body(encode("ab"), max_new_tokens=24))
    reply = server.post(GENERATE, alone)
    assert re.fullmatch(expected, reply.body["text"], re.DOTALL)
    assert "where" not in reply.body["meta_info"]["sglang_lp"]


def test_choices_are_scored_where_the_answer_begins_at_once_and_refused_behind_thoughts(server):
    pick = {"choices": ["yes", "no"], "pick": "likeliest"}
    fields = {"custom_logit_processor": "ChoiceLogitProcessor", "return_meta_info": True}

    refused = ask(server, custom_params=pick, **fields)
    assert refused.status == 400
    assert "turn thinking off" in str(refused.body)

    off = {"chat_template_kwargs": {"enable_thinking": False}}
    reply = ask(server, custom_params=pick, **fields, **off)
    ((message,),) = messages_of(reply)
    assert message["content"] == probabilities(reply.body).likeliest


# A ceiling that holds


words = st.text(st.sampled_from("abc \n<>/"), max_size=40)
marks = st.sampled_from([START, END, TOOL, TOOL + START, "\n", START * 3, "<thi", END[:-1], ">"])
pieces = marks | st.sampled_from(["x" * 19, "x" * 30]) | words
texts = st.lists(pieces, min_size=1, max_size=8).map("".join)
budgets = st.sampled_from([None, -1, 0, 5, 19, 20, 21, 10_000])


class Asked(NamedTuple):
    """A request with settings for its thinking.

    Attributes:
        form: The way in which it asks for a budget.
        own: Parameters of the budget.
        script: Text that the model says, for forms that can carry a script.
        path: Path of the endpoint.
        begun: Beginning of the answer that the client sends, or empty.
        routed: Whether processor and parameters come as sglang-router passes them on.
        grammar: Whether the answer is JSON.
        biased: A text whose first token gets a bias.
        copies: Number of answers.
        stream: Whether the answers are streamed.
        temperature: Sampling temperature.
    """

    form: str
    own: dict[str, Any]
    script: str
    path: str = CHAT
    begun: str = ""
    routed: bool = False
    grammar: bool = False
    biased: str = ""
    copies: int = 1
    stream: bool = False
    temperature: int = 0


owns = st.fixed_dictionaries(
    {},
    optional={
        "thinking_budget": budgets,
        "closing": st.sampled_from(["ab", "so: " * 4, "x" * 300]),
        "soft_thinking_budget": st.sampled_from([0, 5]),
        "total_thinking_tokens": st.sampled_from([3, 100]),
        "max_pattern_size": st.just(8),
        "force_reasoning": st.booleans(),
    },
)
askeds = st.builds(
    Asked,
    st.sampled_from(["none", "own", "chain", "forced", "profile", "bare", "field"]),
    owns,
    texts,
    st.sampled_from([CHAT, GENERATE]),
    st.just("") | texts,
    st.booleans(),
    st.sampled_from([False, False, True]),
    st.sampled_from(["", "<", "x", " "]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from([0, 1]),
)


# Each example has several requests; many more examples are a part of `make soak`.
@pytest.mark.timeout(3600)
@settings(
    max_examples=settings().max_examples // 8,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(together=st.lists(askeds, min_size=6, max_size=10))
@example(
    together=[
        Asked("own", {"thinking_budget": 20, "closing": "x" * 300}, ""),
        Asked("chain", {"thinking_budget": 20}, START * 30),
        Asked("chain", {}, START * 30, GENERATE, START),
        Asked("chain", {}, START, GENERATE, "x" * 30),
        Asked("none", {}, "", GENERATE, f"a{START}b", copies=2, stream=True),
        Asked("none", {}, "", begun=START + TOOL + START),
    ]
)
# Found: SGLang returns a block that a tool call interrupts as one; and its parser of a chat does
# not see a delimiter that began before the answer.
@example(
    together=[
        Asked("chain", {}, TOOL + START, begun=START),
        Asked("chain", {}, "x" * 19 + TOOL + START + "x" * 30, GENERATE, START),
        Asked("chain", {}, "x" * 19 + TOOL + START + "x" * 30, stream=True),
        Asked("chain", {}, "x" * 30 + START + "x" * 30, stream=True),
        Asked("chain", {}, TOOL + "x" * 30 + END, GENERATE, START),
        Asked("chain", {}, ">" + "x" * 40, begun=START + "ab" + END[:-1]),
        Asked("chain", {}, TOOL[-3:] + "x" * 40, begun=START + "ab" + TOOL[:-3], stream=True),
        Asked("chain", {}, "x" * 40, begun=START + "ab" + END + "c"),
    ]
)
def test_no_request_thinks_more_than_the_ceiling(server, encode, together):
    bodies = [written(asked, encode) for asked in together]
    with ThreadPoolExecutor(len(together)) as pool:
        replies = pool.map(
            lambda asked, body: (server.stream if asked.stream else server.post)(asked.path, body),
            together,
            bodies,
        )
    for asked, reply in zip(together, replies, strict=True):
        if reply.status == 400:
            continue  # which is one way to hold
        if reply.status == 500:  # something else that the client asked for forbids the end
            assert asked.form == "forced" or (asked.grammar and asked.path == GENERATE), reply.body
            continue
        assert reply.status == 200, reply.body
        # The stream of a chat may have a block that began with the answer, and one that a start
        # opened later; it does not tell them apart.
        blocks = 1 + (asked.stream and asked.path == CHAT)
        for thought in found(reply, asked):
            # A thought may end with a tool start that had begun before the ceiling.
            assert count(thought) <= blocks * CEILING + len(TOOL), (asked, thought)


def written(asked, encode):
    """Return the body of a request."""
    payload, params, fields = sent(asked, encode)
    bias = {"logit_bias": {str(encode(asked.biased)[0]): 20}} if asked.biased else {}
    if asked.path == GENERATE:
        sampling = {"temperature": asked.temperature, "max_new_tokens": 80, "n": asked.copies}
        if asked.grammar:
            sampling["json_schema"] = json.dumps(SCHEMA)
        if asked.routed and payload is not None:
            payload, params = wire.fold(payload, params), None
        sampling |= {"custom_params": params, **bias}
        text = f"#{asked.begun}"
        return {"text": text, "sampling_params": sampling, "custom_logit_processor": payload}
    fields |= {"model": "tiny", "temperature": asked.temperature, "max_tokens": 80} | bias
    fields |= {"messages": [{"role": "user", "content": "#"}], "n": asked.copies}
    fields["logprobs"] = not asked.stream
    if asked.begun:
        fields["messages"].append({"role": "assistant", "content": asked.begun})
        fields["continue_final_message"] = True
    if asked.grammar:
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
        fields["response_format"] = form
    if asked.routed and payload is not None:
        return {**fields, "metadata": {wire.ENTRY: wire.fold(payload, params)}}
    return {**fields, "custom_logit_processor": payload, "custom_params": params}


def sent(asked, encode):
    """Return the processor, the parameters and the fields with which a budget is asked for."""
    own, script = asked.own, encode(asked.script)
    links = {"0.script": script, **{f"1.{name}": one for name, one in own.items()}}
    known = {name: own[name] for name in ("thinking_budget", "closing") if name in own}
    budget = {"thinking_budget": own.get("thinking_budget")}
    return {
        "none": (None, None, {}),
        "own": (THINK, own, {}),
        "chain": (CHAIN, {"chain": [SCRIPTED, THINK], **links}, {}),
        "forced": (
            "ForcedSequenceLogitProcessor",
            {"token_ids": script, "where": "everywhere"},
            {},
        ),
        "profile": ("brief", known, {}),
        "bare": (None, budget, {}),
        "field": (None, None, budget),
    }[asked.form]


def found(reply, asked):
    """Return the thoughts that each answer adds, by SGLang's parser, whole and block by block."""
    begun = asked.begun
    if asked.path == CHAT:
        for place, parts in enumerate(messages_of(reply)):
            thought = "".join(one.get("reasoning_content") or "" for one in parts)
            if asked.stream:
                yield thought
                continue
            # If the beginning of the answer has an end, only a start opens the next thoughts.
            inside = END not in begun
            yield without_calls(thought if inside else thought.partition(START)[2])
            yield from by_block("", spelled(reply.body["choices"][place]), inside=inside)
        return
    answers = reply.body if isinstance(reply.body, list) else [reply.body]
    if asked.stream:  # the newest event of each has all of its text
        newest = {event.get("index", 0): event for event in reply.events}
        answers = [event for event in newest.values() if "text" in event]
    for answer in answers:
        yield added(begun, begun + answer["text"])
        yield from by_block(begun, answer["text"], inside=False)


def added(begun, text):
    """Return the reasoning that an answer adds to a whole text, from the first start on."""
    own = without_calls(begun.partition(START)[2])
    _, start, after = text.partition(START)
    thought, _ = ReasoningParser("qwen3", stream_reasoning=False).parse_non_stream(start + after)
    return without_calls(thought or "")[len(own) :]


def without_calls(reasoning):
    """Return reasoning without the text between a tool start and the next start.

    SGLang takes a tool start for the end of a block only as long as no end follows it.
    """
    while reasoning.startswith(START):
        reasoning = reasoning.removeprefix(START)
    return re.sub(f"{TOOL}.*?({START}|$)", "", reasoning, flags=re.DOTALL)


def by_block(begun, text, *, inside):
    """Return the reasoning that a text adds to each block, as a stream from there returns it."""
    before = len(begun)
    for block in (begun + text).split(END):
        parser = ReasoningParser("qwen3", force_reasoning=inside)
        thoughts = [parser.parse_stream_chunk(char)[0] or "" for char in block]
        yield "".join(thoughts[max(0, before) :]) + (parser.parse_stream_end()[0] or "")
        before -= len(block) + len(END)
        inside = False


def spelled(choice):
    """Return the text of a chat's answer, before any parser took it apart."""
    return "".join(one["token"] for one in choice["logprobs"]["content"])


# Tool calls


NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
def test_a_call_that_comes_back_is_whole_at_every_budget(server, encode, choice, stream):
    text = f"abcdef{CALL}"

    def answer(budget):
        said = scripted(encode, text, budget)
        said["custom_params"]["0.script"].append(EOS)
        tools = {"tools": TOOLS, "tool_choice": choice}
        return ask(server, max_tokens=200, stream=stream, **tools, **said)

    budgets = [*range(len("abcdef") + 14), 40, len(text)]
    with ThreadPoolExecutor(8) as pool:
        replies = [*pool.map(answer, budgets)]

    called = 0
    for budget, reply in zip(budgets, replies, strict=True):
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


#: A budget in which the start of a call fits, which the model spells in letters.
ROOM_TO_CALL = len("ab<tool_call>")
#: Two calls, the first as the grammar of a required call has it.
ONE = CALL.replace('": "add"', '":"add"').replace('": {', '":{')
TWO = f"{ONE}\n" + ONE.replace("2", "7")


def answered(reply):
    """Return content, arguments of the calls by their index, and finish reason of a chat."""
    (parts,) = messages_of(reply)
    calls = {}
    for call in (call for one in parts for call in one.get("tool_calls") or ()):
        told = call["function"].get("arguments") or ""
        calls[call["index"]] = calls.get(call["index"], "") + told
    events = [event for event in reply.events or [reply.body] if event.get("choices")]
    finished = [event["choices"][0].get("finish_reason") for event in events]
    content = "".join(one.get("content") or "" for one in parts)
    return content, [json.loads(calls[index]) for index in sorted(calls)], finished[-1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [None, ROOM_TO_CALL])
@pytest.mark.parametrize("text", [f"ab{END}so {CALL}", f"ab{CALL}"], ids=["answer", "thoughts"])
def test_tool_choice_none_bans_what_opens_a_call(server, encode, text, budget, stream):
    for choice, opens in (("none", False), ("auto", True)):
        asked = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 90, "stream": stream}
        reply = ask(server, **asked, **scripted(encode, text, budget))
        content, calls, _ = answered(reply)
        assert bool(calls) == opens
        assert TOOL not in content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [None, ROOM_TO_CALL])
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("begun", [f"ab{END}", "ab"], ids=["answer", "thoughts"])
def test_an_answer_ends_after_one_call_without_parallel_calls(
    server, encode, *, begun, choice, budget, stream
):
    asked = {"tools": TOOLS, "tool_choice": choice, "max_tokens": 250, "stream": stream}
    said = scripted(encode, f"{begun}{TWO}", budget)
    said["custom_params"]["0.script"].append(EOS)

    content, calls, finish = answered(ask(server, **asked, **said, parallel_tool_calls=False))
    assert len(calls) == 1
    assert choice == "required" or calls[0]["a"] == 2  # the grammar leaves the arguments free
    assert (content.strip(), finish) == ("", "tool_calls")
    if choice == "auto":  # a grammar has no newline between two calls
        _, calls, _ = answered(ask(server, **asked, **said))
        assert [call["a"] for call in calls] == [2, 7]


def test_calls_are_limited_on_responses_and_messages(server, encode):
    said = scripted(encode, f"ab{END}{TWO}")
    tool = TOOLS[0]["function"]
    responses = {
        "model": "tiny",
        "input": "#",
        "temperature": 0,
        "max_output_tokens": 250,
        "tools": [{"type": "function", **tool}],
        **said,
    }
    messages = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "#"}],
        "temperature": 0,
        "max_tokens": 250,
        "tools": [{"name": tool["name"], "input_schema": tool["parameters"]}],
        **said,
    }
    one_call = {"type": "auto", "disable_parallel_tool_use": True}
    for path, body, none, one in (
        ("/v1/responses", responses, {"tool_choice": "none"}, {"parallel_tool_calls": False}),
        ("/v1/messages", messages, {"tool_choice": {"type": "none"}}, {"tool_choice": one_call}),
    ):
        for fields, expected, name in (
            (none, 0, "BadWordsLogitProcessor"),
            (one, 1, "ToolCallLimitLogitProcessor"),
            ({}, 2, THINK),
        ):
            answer = httpx.post(
                server.url + path, json={**body, **fields}, trust_env=False, timeout=120
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers[HEADER].endswith(name)
            told = json.dumps(answer.json())
            assert len(re.findall(r'"type": "(?:function_call|tool_use)"', told)) == expected, path
            assert expected or TOOL not in told


def test_each_copy_of_an_answer_has_one_call(server, encode):
    asked = {"tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 250}
    said = scripted(encode, f"ab{END}{TWO}")

    for parts in messages_of(ask(server, n=3, **asked, **said)):
        assert sum(len(one.get("tool_calls") or ()) for one in parts) == 1


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
    """Return the reports of an answer, and SGLang's count of reasoning tokens."""
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
    # A sampled end of the sequence would end an answer before its budget is spent.
    body = {"model": "tiny", "temperature": 1, "max_tokens": 20, "ignore_eos": True, **fields}

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


# With a grammar


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [0, 1, 5, 20])
def test_a_structural_tag_begins_where_the_budget_closed_the_block(server, encode, budget, stream):
    tag = {"begin": "<f>", "schema": SCHEMA, "end": "</f>"}
    form = {"type": "structural_tag", "structures": [tag], "triggers": ["<f>"]}
    said = scripted(encode, "abcdefgh<f>", budget)

    reply = ask(server, response_format=form, max_tokens=200, stream=stream, **said)

    (parts,) = messages_of(reply)
    thought = "".join(one.get("reasoning_content") or "" for one in parts)
    text = "".join(one.get("content") or "" for one in parts)
    assert count(thought) <= budget + 1
    # In the block the tag is text.
    if "<f>" not in thought:
        assert json.loads(text.partition("<f>")[2].partition("</f>")[0])["sheep"] in (1, 2)


# Truncation


def test_an_answer_without_room_to_think_ends_with_an_empty_block(server):
    params = {"thinking_budget": 0, "at_limit": "stop"}

    reply = ask(server, custom_logit_processor=THINK, custom_params=params, return_meta_info=True)

    ((message,),) = messages_of(reply)
    (choice,) = reply.body["choices"]
    assert choice["finish_reason"] == "length"
    assert not message.get("reasoning_content")
    assert choice["meta_info"]["sglang_lp"]["thinking"] == [{"tokens": 0, "ended": "budget"}]


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
