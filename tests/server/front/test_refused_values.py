"""Values that SGLang answers with HTTP 500 are refused with the name of their field."""

import json
from time import process_time

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front.refused_values import (
    check_reasoning_parser,
    check_response_format,
    check_tool_parser,
)

DEEP = json.loads("[" * 900 + "]" * 900)


@pytest.mark.parametrize("form", [DEEP, [1], {"type": "json_schema", "json_schema": {"x": DEEP}}])
def test_a_response_format_that_is_no_object_or_too_deep_is_refused(form):
    with pytest.raises(RequestError, match=r"^response_format: expected .* got "):
        check_response_format({"response_format": form})


@pytest.mark.parametrize("form", [None, {"type": "json_object"}])
def test_other_formats_are_sglangs_to_check(form):
    check_response_format({"response_format": form})


def calls(text, parser="hermes"):
    return {"text": text, "tools": [], "tool_call_parser": parser}


def thoughts(text, parser="qwen3"):
    return {"text": text, "reasoning_parser": parser}


# SGLang parses the texts of /parse_function_call and /separate_reasoning in its event loop, with a
# parser that the client names: 110 KB took `glm45` 5 s, 4,096 line ends `dots` 4 s.
@pytest.mark.parametrize(
    ("check", "body"),
    [
        (check_tool_parser, calls("<tool_call>" * 1_490)),
        (check_tool_parser, calls("<dots_function_call>" + "\n" * 129, "dots")),
        (check_reasoning_parser, thoughts("<|eom|>" * 9_363, "muse")),
        (check_reasoning_parser, thoughts(" \t\r" * 43, "gpt-oss")),
    ],
)
def test_a_text_that_a_parser_could_read_for_seconds_is_refused(check, body):
    with pytest.raises(RequestError, match=r"^text: expected at most .* in (your|a row)"):
        check(body)


SLOWEST = [
    ("dots", "<dots_function_call>" + (" " * 128 + "x") * 120),
    ("glm47", "</tool_call>" + "<tool_call>" * 1_400),
    ("hunyuan", "<tool_calls>" + "<tool_call>" * 1_400),
    ("interns1", "<|action_start|> <|plugin|>" + (" " * 128 + "x") * 120),
]


@pytest.mark.parametrize(("parser", "text"), SLOWEST, ids=[name for name, _ in SLOWEST])
def test_the_slowest_parsers_of_calls_read_the_longest_texts_in_time(parser, text):
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    check_tool_parser(calls(text, parser))
    tool = Tool(type="function", function={"name": "f", "parameters": {"type": "object"}})
    began = process_time()
    FunctionCallParser([tool], parser).parse_non_stream(text)
    assert process_time() - began < 2


@pytest.mark.parametrize(
    ("parser", "text"), [("gpt-oss", (" " * 128 + "x") * 500), ("muse", "<|eom|>" * 9_362)]
)
def test_the_slowest_parsers_of_thoughts_read_the_longest_texts_in_time(parser, text):
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    check_reasoning_parser(thoughts(text, parser))
    began = process_time()
    ReasoningParser(parser).parse_non_stream(text)
    assert process_time() - began < 2


@pytest.mark.parametrize("text", [None, 5, ["a"]])
def test_texts_of_another_type_are_sglangs_to_refuse(text):
    check_tool_parser(calls(text))
    check_reasoning_parser(thoughts(text))
