"""Chats that continue an answer: thoughts may have ended in what the client begins it with."""

from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt")

from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.parser.reasoning_parser import ReasoningParser

from sglang_lp.server.front.continued import make_read_continued
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.reasoning_parser import reasoning_format
from sglang_lp.server.gate.reserved_keys import THOUGHT, check_origin, check_shape
from sglang_lp.trust import Policy


def chat(content, *, role="assistant", **fields):
    messages = [{"role": "user", "content": "?"}, {"role": role, "content": content}]
    fields = {"model": "m", "messages": messages, "continue_final_message": True, **fields}
    return ChatCompletionRequest(**fields)


def read(content, parser="qwen3", **fields):
    request = chat(content, **fields)
    guard = Guard(Policy.default())
    guard.reasoning = reasoning_format(parser, None)
    manager = SimpleNamespace(tokenizer=None)
    serving = SimpleNamespace(reasoning_parser=parser, tokenizer_manager=manager)
    make_read_continued(guard)(serving, request)
    return request.custom_params


@pytest.mark.parametrize("content", ["<think>ab</think>c", "</think>", "<think>\n\n</think>\n\n"])
def test_an_answer_whose_thoughts_have_ended_is_marked(content):
    found = read(content)
    assert found == {THOUGHT: True}
    check_origin(found)
    check_shape(found, None)
    assert read(content, custom_params={"a": 1}) == {"a": 1, THOUGHT: True}


@pytest.mark.parametrize(
    "content", ["", "<think>ab", "ab", "ab</think", None, [{"type": "text", "text": "</think>"}]]
)
def test_an_answer_that_may_still_think_is_not(content):
    assert read(content) is None


def test_what_is_not_continued_is_left_alone():
    assert read("a</think>", role="user") is None
    assert read("a</think>", continue_final_message=False) is None
    assert read("a</think>", parser=None) is None


# A parser may look for another end, or for none: a mark then would lift every ceiling.
@pytest.mark.parametrize("effort", ["high", "medium", "low"])
@pytest.mark.parametrize("parser", sorted({*ReasoningParser.DetectorMap} - {"response_template"}))
def test_no_answer_is_marked_that_its_parser_returns_as_reasoning(parser, effort):
    kwargs = {"reasoning_effort": effort}
    form = reasoning_format(parser, None)
    for end in {one.end for one in (form, *form.others)}:
        if not read(f"a{end}b", parser, chat_template_kwargs=kwargs):
            continue
        request = chat(f"a{end}b", chat_template_kwargs=kwargs)
        for streamed in (False, True):
            one = ReasoningParser(parser, force_reasoning=True, request=request)
            said = one.parse_stream_chunk("xyz") if streamed else one.parse_non_stream("xyz")
            assert not said[0], end


def test_a_parser_that_does_not_look_back_is_counted_on():
    assert read("a<|END_THINKING|>b", "cohere_command4") is None
    other = {"chat_template_kwargs": {"reasoning_effort": "low"}}
    assert read("a</ifm|think>b", "k2_horizon", **other) is None
    assert read("a</ifm|think_faster>b", "k2_horizon", **other) == {THOUGHT: True}
