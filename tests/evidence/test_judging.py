"""The judges of the evidence are right on texts with known answers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from benchmarks.evidence.judging import (
    SHORTEST,
    TIMES,
    distinct,
    ends_in_a_loop,
    holds_word,
    share,
    shared_start,
)

UNIT = st.text("abcdefgh ,.<>/", min_size=1, max_size=40).filter(str.strip)
PROSE = (
    "The sea was calm that day, and the sailor who had lost his boat sat on the stones. "
    "Nobody came. In the evening a girl brought bread, and they spoke of the north."
)


@given(start=st.just(PROSE), unit=UNIT, cut=st.integers(0, 40))
def test_a_text_that_repeats_its_end_is_a_loop_wherever_it_is_cut(start, unit, cut):
    times = TIMES + 1 + SHORTEST // len(unit)
    assert ends_in_a_loop(start + unit * times + unit[: cut % len(unit)])


@given(unit=UNIT)
def test_twice_is_not_a_loop(unit):
    assert not ends_in_a_loop(f"{PROSE} {unit}|{unit}|")


def test_prose_is_no_loop_and_one_that_went_on_is_none():
    assert not ends_in_a_loop(PROSE)
    assert not ends_in_a_loop("la la la la la la la la la la la la la la " + PROSE)
    assert not ends_in_a_loop("")


def test_a_list_that_only_counts_is_a_loop_where_numbers_do_not_count():
    text = PROSE + "".join(f" {number}. Pluto" for number in range(8, 16))
    assert not ends_in_a_loop(text)
    assert ends_in_a_loop(text, numbered=True)


@given(text=st.text("ab1 ", max_size=120))
def test_loops_are_those_that_a_pattern_finds(text):
    plain = re.sub(r"\s+", " ", text)
    found = any(
        len(plain[at:]) >= max(SHORTEST, TIMES * size) and plain[at + size :] == plain[at:-size]
        for at in range(len(plain))
        for size in range(1, len(plain[at:]) // TIMES + 1)
    )
    assert ends_in_a_loop(text) is found


@pytest.mark.parametrize(("hits", "of"), [(0, 20), (3, 40), (40, 40), (100, 204)])
def test_the_interval_is_wilsons(hits, of):
    theirs = binomtest(hits, of).proportion_ci(method="wilson")
    ours = share([True] * hits + [False] * (of - hits))
    assert ours[:2] == (hits, of)
    assert ours[2:] == pytest.approx((theirs.low, theirs.high), abs=1e-4)


def test_of_nothing_nothing_is_known():
    assert share([]) == (0, 0, 0.0, 1.0)


def test_a_word_is_a_whole_one():
    assert holds_word("The cat.", "cat")
    assert not holds_word("The cats.", "cat")
    assert not holds_word("The Cat.", "cat")
    assert holds_word("The Cat.", "cat", ignore_case=True)


def test_words_and_starts_are_counted():
    assert distinct("one two One, three") == 0.75
    assert distinct(" .") is None
    assert shared_start([1, 2, 3, 4], [1, 2, 9]) == 0.5
    assert shared_start([], []) == 0.0
