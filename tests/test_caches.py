"""Caches shared by the ``n`` copies of a request."""

import weakref

import pytest

from sglang_lp.caches import Latest, packed


class Made:
    pass


def test_what_was_asked_for_last_is_kept():
    latest = Latest(2)
    first, second, third = Made(), Made(), Made()
    latest.keep("first", first)
    latest.keep("second", second)
    assert latest.get("first") is first
    latest.keep("third", third)

    assert latest.get("second") is None
    assert latest.get("first") is first
    assert {*latest.values()} == {first, third}


def test_what_is_no_longer_kept_goes():
    latest = Latest(1)
    latest.keep("first", made := Made())
    gone = weakref.ref(made)
    del made
    latest.keep("second", Made())
    assert gone() is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": [1]}, {"a": ["1"]}),
        ({"a": None}, {}),
        (None, {"a": None}),
        ({"a": 0.0}, {"a": -0.0}),
    ],
)
def test_different_parameters_are_packed_differently(one, other):
    assert packed(one) != packed(other)


def test_the_same_parameters_are_packed_alike_whoever_sent_them():
    assert packed({"a": [1, 2], "__req__": object()}) == packed({"a": [1, 2]})


@pytest.mark.parametrize("odd", [[1], "text", {"a": object()}, {"a": 2**70}, {"a": "\ud800"}, 7])
def test_what_cannot_be_packed_is_told(odd):
    assert packed(odd) is None


def test_parameters_that_hold_themselves_cannot_be_packed():
    endless = {}
    endless["a"] = endless
    assert packed(endless) is None
