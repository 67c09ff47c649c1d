"""Chats that continue an answer: thoughts may have ended in what the client begins it with."""

from types import SimpleNamespace

import pytest

from sglang_lp.builtins.thinking.known import ReasoningFormat
from sglang_lp.server.front.continued import make_read_continued
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.reserved_keys import THOUGHT, check_origin, check_shape
from sglang_lp.trust import Policy

FORM = ReasoningFormat("<think>", "</think>")
EFFORTS = FORM._replace(others=(FORM._replace(end="</think_fast>"),))


def read(content, *, form=FORM, role="assistant", **fields):
    guard = Guard(Policy.default())
    guard.reasoning = form
    messages = [SimpleNamespace(role=role, content=content)]
    fields = {"custom_params": None, "continue_final_message": True, "messages": messages, **fields}
    request = SimpleNamespace(**fields)
    make_read_continued(guard)(None, request)
    return request.custom_params


@pytest.mark.parametrize("content", ["<think>ab</think>c", "</think>", "<think>\n\n</think>\n\n"])
def test_an_answer_whose_thoughts_have_ended_is_marked(content):
    found = read(content)
    assert found == {THOUGHT: True}
    check_origin(found)
    check_shape(found, None)
    assert read(content, custom_params={"a": 1}) == {"a": 1, THOUGHT: True}


@pytest.mark.parametrize("content", ["", "<think>ab", "ab", None, [{"type": "text"}]])
def test_an_answer_that_may_still_think_is_not(content):
    assert read(content) is None


def test_the_end_of_any_effort_counts():
    assert read("a</think_fast>b", form=EFFORTS) == {THOUGHT: True}


def test_what_is_not_continued_is_left_alone():
    for other in (
        {"role": "user"},
        {"form": None},
        {"continue_final_message": False},
        {"messages": []},
    ):
        assert read("a</think>", **other) is None
