"""The matrix of ``sglang-lp doctor``: what it asks, and how it judges what comes."""

import json
import re

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.cli import main, matrix
from sglang_lp.cli.http import HttpAnswer
from sglang_lp.cli.matrix_judge import BUDGET, REGEX, SCHEMA, TOOL, Cell, Reply, is_document, judge
from sglang_lp.wire.names import POLICY_HEADER
from support.servers.listening import Answered, listening

WHOLE, WORDS = '{"sheep": ["white"]}', "white and black"
CALL = ((TOOL, WHOLE),)


def cell(**fields):
    base = {"endpoint": "chat", "format": "none", "tools": "no tools"}
    return Cell(**{**base, "thinking": "on", "fields": "stock", "stream": False, **fields})


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["white", "black", "sheep"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["sheep", "white"]), inner)
    ),
    max_leaves=5,
)


@given(
    values.map(json.dumps)
    | st.lists(st.sampled_from(["white", "black", " and ", "{", " "])).map("".join),
    st.integers(0, 40),
)
def test_a_document_is_one_for_jsonschema_and_for_re(text, cut):
    for part in (text, text[:cut]):
        try:
            jsonschema.validate(json.loads(part), SCHEMA)
            valid = True
        except (ValueError, jsonschema.ValidationError):
            valid = False
        assert is_document("json_schema", part) == valid
        assert is_document("regex", part) == (re.fullmatch(REGEX, part.strip()) is not None)
        assert not is_document("none", part)


@pytest.mark.parametrize(
    ("asked", "reply", "came", "ok"),
    [
        ({}, {"content": "x", "finish": "length"}, "text", True),
        ({}, {"thoughts": "x", "finish": "length"}, "cut off in thoughts", False),
        ({}, {"finish": "stop"}, "nothing", False),
        ({"thinking": "off"}, {"content": "x", "thoughts": "y"}, "text, thoughts", False),
        ({}, {"content": "a</think>b"}, "text, delimiters in content", False),
        ({"tools": "none"}, {"calls": CALL}, "call", False),
        ({"tools": "auto"}, {"calls": CALL}, "call", True),
        ({"tools": "required"}, {"calls": CALL}, "call", True),
        ({"tools": "named"}, {"calls": (*CALL, *CALL)}, "call", True),
        ({"tools": "required"}, {"calls": ((TOOL, "{"),)}, "broken call", False),
        ({"tools": "required"}, {"calls": (("x", WHOLE),)}, "broken call", False),
        ({"tools": "required"}, {"calls": ((TOOL, "5"),)}, "call with other arguments", False),
        ({"tools": "loose"}, {"calls": ((TOOL, "5"),)}, "call with other arguments", True),
        ({"tools": "required"}, {"calls": CALL, "finish": "length"}, "cut off", False),
        ({"tools": "required"}, {"content": f"<{TOOL}>"}, "call as text", False),
        ({"tools": "required"}, {"content": "x"}, "no call", False),
        (
            {"tools": "required", "format": "regex"},
            {"content": WORDS},
            "document, no call",
            False,
        ),
        ({"format": "json_schema"}, {"content": WHOLE}, "document", True),
        ({"format": "regex"}, {"content": f"\n{WORDS}"}, "document", True),
        ({"format": "json_schema"}, {"thoughts": WHOLE}, "document in thoughts", False),
        ({"format": "json_schema"}, {"content": WHOLE[:9], "finish": "length"}, "cut off", False),
        ({"format": "json_schema"}, {"content": WORDS, "finish": "stop"}, "other text", False),
        (
            {"format": "json_schema", "tools": "auto"},
            {"content": WHOLE, "calls": CALL},
            "document and call",
            False,
        ),
        (
            {"format": "json_schema", "thinking": "budget"},
            {"content": WHOLE, "blocks": (1, BUDGET + 2)},
            "document, over budget",
            False,
        ),
        ({"thinking": "budget"}, {"content": "x", "blocks": (BUDGET + 1,)}, "text", True),
        ({}, {"status": 400}, "refused", False),
        ({}, {"status": 500}, "HTTP 500", False),
    ],
)
def test_what_came_is_told_in_a_few_words(asked, reply, came, ok):
    assert judge(cell(**asked), Reply(**{"status": 200, **reply})) == (came, ok)


def test_a_stream_is_read_like_a_whole_answer():
    deltas = [
        {"delta": {"role": "assistant", "reasoning_content": "th\u2028"}},
        {"delta": {"reasoning_content": "ink"}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"name": TOOL, "arguments": "{"}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    text = "".join(
        f"data: {json.dumps({'choices': [one]}, ensure_ascii=False)}\n\n" for one in deltas
    )
    message = {"reasoning_content": "th\u2028ink", "content": None}
    message["tool_calls"] = [{"index": 0, "function": {"name": TOOL, "arguments": "{}"}}]
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    expected = Reply(200, "", "th\u2028ink", ((TOOL, "{}"),), "tool_calls")
    assert matrix.read(HttpAnswer(200, {}, text + "data: [DONE]\n\n")) == expected
    assert matrix.read(HttpAnswer(200, {}, whole)) == expected
    error = f"data: {json.dumps({'error': {'message': 'no', 'code': 400}})}\n\n"
    assert matrix.read(HttpAnswer(200, {}, error)) == Reply(400, error="no")


def test_the_requests_are_bounded_and_each_is_told(capsys):
    bodies = []

    def answer(asked):
        if asked.path == "/v1/models":
            return Answered(200, {"data": [{"id": "m"}]})
        if asked.path == "/server_info":
            return Answered(200, {"version": "9", "reasoning_parser": None})
        bodies.append(asked.body)
        choice = {"message": {"content": WHOLE}, "finish_reason": "stop"}
        return Answered(200, {"choices": [choice]})

    with listening(answer) as url:
        assert main(["doctor", "--url", url, "--matrix", "--json"]) == 0  # stock alone is told
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        main(["doctor", "--url", url, "--matrix"])
        said = capsys.readouterr().out.splitlines()
    assert 2 * len(lines) == len(bodies)
    assert {line["fields"] for line in lines} == {"stock"}
    assert {line["thinking"] for line in lines} == {"off"}
    assert all(body["max_tokens"] <= matrix.TOKENS for body in bodies)
    assert said[0] == f"{url}: SGLang 9, reasoning parser none"
    assert "chat         json_schema  no tools     document" in said
    assert "chat         regex        no tools     ! other text" in said


@pytest.mark.parametrize("always", [True, False])
def test_thoughts_are_a_fault_where_thinking_can_be_turned_off(capsys, always):
    def answer(asked):
        if asked.path == "/v1/models":
            return Answered(200, {"data": [{"id": "m"}]}, {POLICY_HEADER: "x"})
        if asked.path == "/server_info":
            return Answered(200, {"version": "9", "reasoning_parser": "deepseek-r1"})
        body = asked.body
        if "regex" in body:
            return Answered(400, {"message": "no"})
        called = body.get("tool_choice") not in (None, "none", "auto")
        message = {"content": WHOLE, "reasoning_content": "hm"}
        if called:
            function = {"name": TOOL, "arguments": WHOLE}
            message |= {"content": None, "tool_calls": [{"index": 0, "function": function}]}
        if "response_format" in body and called:
            return Answered(400, {"message": "no"})
        if not always and not body["stream"]:
            message["reasoning_content"] = None
        if "prompt" in body:
            return Answered(200, {"choices": [{"text": WHOLE, "finish_reason": "stop"}]})
        return Answered(200, {"choices": [{"message": message, "finish_reason": "stop"}]})

    with listening(answer) as url:
        assert main(["doctor", "--url", url, "--matrix"]) == (0 if always else 1)
    said = capsys.readouterr().out
    assert ("always thinks" in said) == always
    assert ("! document, thoughts" in said) != always
    assert "document, thoughts" in said


def test_a_guarded_server_that_thinks_is_asked_for_everything():
    served = matrix.Served("", "m", is_guarded=True, version=None, arguments={})
    found = matrix.cells(served)
    assert len({*found}) == len(found) < 200
    assert {one.thinking for one in found} == {"off", "on", "budget"}
    for one in found:
        body = matrix.body_of(one, "m")
        params = body.get("custom_params", {})
        assert (one.fields == "toolkit") == bool(params)
        assert params.get("whole_answer", False) == (one.has_grammar and bool(params))
        assert ("thinking_budget" in params) == (one.thinking == "budget")


def test_the_matrix_is_of_a_server(capsys):
    assert main(["doctor", "--matrix"]) == 2
    assert "--matrix: expected --url" in capsys.readouterr().err
