"""Objects for each copy and text: one HTTP request has one budget, spread over steps."""

import time
from types import SimpleNamespace

import pytest

from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import attach_row
from sglang_lp.adapters import EngineSettings, adapt, trial
from sglang_lp.errors import RequestError
from sglang_lp.links import prepare
from sglang_lp.policy.adapt import Adapt
from sglang_lp.served_model import ServedModel
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.front.bounds import MAX_MAKING
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.reserved_keys import MAKING, check_shape
from sglang_lp.testing import FakeRequest
from sglang_lp.trust import Policy

NAME = f"{__name__}:Slow"
SERVED = SimpleNamespace(
    model_config=SimpleNamespace(vocab_size=32, hf_eos_token_id={2}),
    server_args=SimpleNamespace(speculative_algorithm=None),
    preferred_sampling_params=None,
)


class Slow:
    made = 0

    def __init__(self, work=0.0, which=0):
        Slow.made += 1
        until = time.thread_time() + work
        while time.thread_time() < until:
            pass

    def __call__(self, input_ids, scores):
        return scores


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Let a constructor wait for a busy machine."""
    monkeypatch.setattr(trial, "PATIENCE", 60.0)


@pytest.fixture
def admit():
    """Return a function that admits a list of texts with their copies."""
    guard = Guard(Policy(adapt=(Adapt(name=NAME, interface="transformers"),)))

    def admitting(given, copies=1):
        texts = [(NAME, {"custom_params": one}) for one in given]
        obj = SimpleNamespace(max_thinking_tokens=None, input_ids=None)
        Slow.made = 0
        for _ in Admission(guard)._check_body(SERVED, obj, texts, copies):
            pass

    return admitting


TOO_LONG = r"at most 2 s in all, got .* s for the first \d+; send several requests, or ask for less"


@pytest.mark.parametrize(("texts", "copies"), [(1, 100), (100, 1), (10, 10)])
def test_constructors_of_all_texts_and_copies_have_one_budget(admit, texts, copies):
    with pytest.raises(RequestError, match=TOO_LONG):
        admit([{"work": 0.05}] * texts, copies)
    admit([{"work": 0.0}] * texts, copies)
    admit([{"work": 0.05}])


def test_texts_of_different_parameters_are_tried_until_the_budget_is_spent(admit):
    with pytest.raises(RequestError, match=TOO_LONG):
        admit([{"work": 0.2, "which": which} for which in range(60)])
    assert Slow.made <= MAX_MAKING / 0.2 + 1


def test_one_object_may_take_what_one_may():
    guard = Guard(Policy(adapt=(Adapt(name=NAME, interface="transformers"),)))
    sampling = SimpleNamespace(custom_params={"work": 0.01}, n=1)
    tokenized = SimpleNamespace(custom_logit_processor=NAME, sampling_params=sampling)
    Admission(guard).admit(tokenized, SERVED, SimpleNamespace())

    # The scheduler learns how long it takes.
    assert 10_000 <= sampling.custom_params[MAKING] < 250_000
    assert sampling.custom_params[MAKING] % 100 == 0
    check_shape(sampling.custom_params, None)
    sampling.custom_params, sampling.n = {"work": 0.01}, 1_000
    with pytest.raises(RequestError, match=TOO_LONG):
        Admission(guard).admit(tokenized, SERVED, SimpleNamespace())


@pytest.mark.parametrize(
    ("making", "at_once"), [(250_000, 1), (60_000, 1), (40_000, 2), (100, 40), (None, 16), (-5, 40)]
)
def test_objects_are_made_before_the_first_step_a_bounded_time_between_two(making, at_once):
    cls = adapt(Slow, "transformers")
    cls.begin(EngineSettings(vocab_size=32))
    arrivals, rows = Arrivals(), []
    Slow.made = 0
    for _ in range(40):
        request = FakeRequest([1, 2], served=True)
        given = request.custom_params({"work": 0.0})
        rows.append(attach_row(given, prepare(cls(), given, ServedModel())))
        arrivals.start(rows[-1], 32, making)
    assert Slow.made == 0

    steps = 0
    while arrivals.wait:
        before = Slow.made
        waiting = arrivals.read(rows, 32)
        assert 0 < Slow.made - before <= at_once
        assert len(waiting) == 40 - Slow.made
        steps += 1
    assert (Slow.made, steps) == (40, -(-40 // at_once))


def test_a_chain_waits_for_the_object_of_a_link():
    from sglang_lp.builtins import ChainLogitProcessor

    chain = ChainLogitProcessor.limited_to(lambda _name: adapt(Slow, "transformers"))
    ((serving, _, *_),) = prepare(chain(), {"chain": ["m:Slow"]}, ServedModel())
    assert serving.makes_object
