"""The attributes that processors add to the span of a request."""

from types import SimpleNamespace

import orjson
import pytest

from sglang_lp.server.front.span_attributes import add_report
from sglang_lp.wire.names import REPORT

KNOWN = {
    "processors": ["Qwen3ThinkingBudgetLogitProcessor", "DRYLogitProcessor"],
    "policy": "5f0c",
    "forced": 2,
    "forced_at": [[8, 10]],
    "edited": [[0, 3], [5, 6]],
    "truncated": None,
}
SAID = {
    "sglang_lp.processors": KNOWN["processors"],
    "sglang_lp.policy": "5f0c",
    "sglang_lp.forced": 2,
    "sglang_lp.edited": 4,
}
#: Of SGLang itself.
OTHERS = {"gen_ai.request.id": "a"}


def added(reason):
    """Return the attributes of the second of two answers, which ended for this reason."""
    attributes = {**OTHERS}
    add_report(attributes, None, None, SimpleNamespace(finished_reasons=[None, reason]), 1)
    return attributes


def ended(**report):
    return {"type": "stop", REPORT: orjson.dumps({**KNOWN, **report}).decode()}


def test_the_span_names_the_processors_and_counts_their_edits():
    assert added(ended()) == {**OTHERS, **SAID}


def test_the_span_says_what_ended_each_thinking_block():
    blocks = [{"tokens": 8, "ended": "budget"}, {"tokens": 3, "ended": None}]
    thinking = {"sglang_lp.thinking.tokens": [8, 3], "sglang_lp.thinking.ended": ["budget", "open"]}
    assert added(ended(thinking=blocks)) == {**OTHERS, **SAID, **thinking}


@pytest.mark.parametrize("thinking", [5, None, {"a": 1}, [1], [{}], ["ended"]])
def test_what_else_a_class_reports_as_thinking_is_left_out(thinking):
    assert added(ended(thinking=thinking)) == {**OTHERS, **SAID}


@pytest.mark.parametrize("reason", [None, {"type": "stop"}])
def test_an_answer_without_processors_adds_nothing(reason):
    assert added(reason) == OTHERS
