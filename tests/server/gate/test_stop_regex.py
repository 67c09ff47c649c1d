"""Patterns that a scheduler searches at each step have a bounded number of steps."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lp.errors import RequestError
from sglang_lp.server.gate.stop_regex import check_stop_regex

#: Many last tokens of an output, in which most parts of the patterns below match.
TEXTS = ("a" * 2_000, "ab" * 1_000, "a" * 1_999 + "!", "1" * 2_000)

parts = st.recursive(
    st.sampled_from(["a", "b", ".", r"\w", r"\d", "[ab]", r"\b", "^"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda few: f"(?:{'|'.join(few)})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{1,8}", "{0,16}", "{3}", "{1,64}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


def takes(patterns, window=0):
    try:
        check_stop_regex(patterns, window)
    except RequestError:
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(parts.map(lambda pattern: pattern + "!?x"))
def test_a_pattern_that_is_taken_is_quick_on_every_text(pattern):
    if not takes(pattern):
        return
    for text in TEXTS:
        began = time.process_time()
        re.search(pattern, text)
        assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "pattern",
    [
        r"^(\s?\w?.?)+\x01$",
        "(a?){25}x",
        "(.*a){25}$",
        "((a{9999}){9999}){9999}",
        "a{1,1000000000}",
        r"\w+",
        "(?=a)b",
        r"(a)\1",
        "[^a]",
    ],
)
def test_a_pattern_without_a_bound_is_refused(pattern):
    with pytest.raises(RequestError, match=r"^stop_regex: expected a pattern of bounded work"):
        check_stop_regex(pattern, 0)


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[", r"\q", "a{99999999999999999999}"])
def test_a_pattern_that_python_does_not_know_is_refused(pattern):
    with pytest.raises(RequestError, match=r"^stop_regex: expected a regular expression"):
        check_stop_regex(pattern, 0)


@pytest.mark.parametrize(
    "pattern", [r"\n\n", r"\d{1,16}", "(?:END|STOP)", r"a\d{1,64}b", "(?i)user:", "^#{1,6} ", ""]
)
def test_patterns_of_clients_are_taken(pattern):
    assert takes(pattern)


def test_the_work_of_all_patterns_and_of_the_stop_strings_counts():
    assert takes([r"a\d{1,64}b"])
    assert not takes([r"a\d{1,64}b"] * 4)
    assert not takes([r"a\d{1,64}b"], window=1_000)


# SGLang's scheduler compiles the patterns of a request; CPython's `_optimize_charset` goes through
# each character of a range.
def test_sets_that_take_long_to_compile_are_refused():
    whole = "[\0-\uffff]"
    assert takes(["[\u4e00-\u9fff]{1,8}", "(?i)[a-z]{2,8}"])
    assert not takes(["(?i)" + whole * 3])
    assert not takes([whole + end for end in "ab"] + ["(" + "|".join("[ab]" * 64) + ")"])
    began = time.process_time()
    re.compile("(?i)" + whole + "x")
    assert time.process_time() - began < 0.25


# SGLang searches one token more than the longest match, and a token has several characters.
def test_patterns_without_a_character_take_steps_as_well():
    assert not takes([r"(?:|){13}\b\B"] * 3)
