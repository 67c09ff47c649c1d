"""How long the constructors of adapted classes may take for one HTTP request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.front.bounds import MAX_MAKING
from sglang_lp.server.gate.reserved_keys import MAKING

MANAGER = SimpleNamespace(preferred_sampling_params=None, server_args=SimpleNamespace())


@pytest.fixture
def admission(guard, monkeypatch):
    """Return a gate that measures of each request the seconds in its parameters."""

    def admit(intake):
        seconds = intake.custom_params["seconds"]
        return SimpleNamespace(
            payload=intake.payload,
            names=(),
            making=seconds,
            choices=frozenset(),
            picks=0,
            servings=(),
        )

    monkeypatch.setattr(guard, "learn", lambda *_: None)
    monkeypatch.setattr(guard, "admit", admit)
    return Admission(guard)


def check_list(admission, seconds, copies=1):
    """Check a list whose texts have constructors of so many seconds."""
    obj = SimpleNamespace(
        batch_size=len(seconds),
        custom_logit_processor=["m:C"] * len(seconds),
        sampling_params=[{"custom_params": {"seconds": one}} for one in seconds],
        max_thinking_tokens=None,
        parallel_sample_num=copies,
    )
    for _ in admission.check_list(MANAGER, obj):
        pass


def admit(admission, seconds, copies):
    """Admit one request, and return the parameters that go to the scheduler."""
    sampling = SimpleNamespace(custom_params={"seconds": seconds}, n=copies)
    tokenized = SimpleNamespace(custom_logit_processor="m:C", sampling_params=sampling)
    admission.admit(tokenized, MANAGER, SimpleNamespace())
    return sampling.custom_params


def refusal(got, objects):
    return (
        "custom_logit_processor: expected texts and copies (n) of one HTTP request for which the "
        f"constructors of its adapted classes take at most {MAX_MAKING:g} s in all, got {got} s "
        f"for the first {objects}; send several requests, or ask for less"
    )


@pytest.mark.parametrize(
    ("seconds", "copies"),
    [([1.0, 1.0], 1), ([0.5] * 4, 1), ([0.5, 0.25, 0.25], 2), ([0.0] * 50, 10), ([2.5], 1)],
)
def test_a_list_may_take_the_limit_and_one_object_what_it_takes(admission, seconds, copies):
    check_list(admission, seconds, copies)


@pytest.mark.parametrize(
    ("seconds", "copies", "got", "objects"),
    [
        ([1.5, 1.0, 0.5], 1, "2.5", 2),
        ([1.5, 0.5, 0.5], 1, "2.5", 3),
        ([0.5] * 5, 1, "2.5", 5),
        ([2.5], 2, "5", 2),
        ([0.125, 0.25], 8, "3", 16),
    ],
)
def test_a_list_that_takes_longer_is_refused_with_what_it_takes(
    admission, seconds, copies, got, objects
):
    with pytest.raises(RequestError) as refused:
        check_list(admission, seconds, copies)
    assert str(refused.value) == refusal(got, objects)


def test_copies_of_one_text_have_the_same_limit(admission):
    admit(admission, 0.5, 4)
    admit(admission, 2.5, 1)
    with pytest.raises(RequestError) as refused:
        admit(admission, 0.5, 5)
    assert str(refused.value) == refusal("2.5", 5)


@pytest.mark.parametrize(
    ("seconds", "microseconds"),
    [(0.00005, 100), (0.0001, 100), (0.25, 250_000), (0.25001, 250_100)],
)
def test_the_scheduler_learns_the_time_in_steps_of_a_hundred_microseconds(
    admission, seconds, microseconds
):
    assert admit(admission, seconds, 1) == {"seconds": seconds, MAKING: microseconds}
