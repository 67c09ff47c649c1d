"""What a request keeps goes when it is over, whoever still holds SGLang's object."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

from sglang_lp._engine.rows import attach_row, rows_of
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.scheduler.release import abandon, finish
from sglang_lp.testing import FakeRequest


class State:
    pass


class Keeps(LogitProcessor):
    def start(self, request):
        return State()

    def edit(self, request, edits):
        edits.ban([1])


def kept():
    """Return SGLang's request as a session holds it, and a reference to its state."""
    params = FakeRequest([1], served=True).custom_params({})
    row = attach_row(params, Keeps(), None)
    row.look()
    req = SimpleNamespace(
        custom_logit_processor="payload",
        sampling_params=SimpleNamespace(custom_params=params),
        origin_input_ids=[1],
        output_ids=[],
        finished=lambda: req.reason is not None,
        finished_reason=None,
        reason=None,
    )
    return req, weakref.ref(row.request.state)


@pytest.mark.parametrize("reason", [None, "stop"])
def test_state_goes_with_the_step_that_ends_its_request_and_not_before(reason):
    req, state = kept()

    finish(lambda req, _count: setattr(req, "reason", reason), req)
    gc.collect()

    assert (state() is None) == (reason is not None)
    assert (rows_of([req.sampling_params.custom_params]) == [None]) == (reason is not None)


def test_state_goes_with_a_request_that_is_aborted_while_it_waits():
    req, state = kept()

    assert abandon(None, "scheduler", req) is None
    gc.collect()

    assert state() is None


@pytest.mark.parametrize("params", [None, {}, {"mine": 1}, 7])
def test_a_request_without_a_processor_keeps_what_it_has(params):
    sampling = SimpleNamespace(custom_params=params)
    abandon(None, "scheduler", SimpleNamespace(sampling_params=sampling))

    assert sampling.custom_params == params
