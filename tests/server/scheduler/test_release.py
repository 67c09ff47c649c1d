"""A request's state is freed when it is over, even if SGLang's object is still referenced."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.links import Serving
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.scheduler import release
from sglang_lp.server.scheduler.release import abandon, finish
from sglang_lp.testing import FakeRequest


class State:
    pass


class Keeps(LogitProcessor):
    def start(self, request):
        return State()

    def edit(self, request, edits):
        edits.ban([1])


def kept(processor=Keeps):
    """Return SGLang's request as a session holds it, and a reference to its state."""
    params = FakeRequest([1], served=True).custom_params({})
    row = attach_row(params, [Serving(processor(), None)])
    row.accept_tokens()
    req = SimpleNamespace(
        custom_logit_processor="payload",
        sampling_params=SimpleNamespace(custom_params=params),
        origin_input_ids=[1],
        output_ids=[],
        finished=lambda: req.finished_reason is not None,
        finished_reason=None,
        finished_len=None,
    )
    return req, weakref.ref(row.turns[0].request.state)


def ends_with(reason):
    """Return a function in place of SGLang's own decision."""
    made = FINISH_MATCHED_STR(reason) if isinstance(reason, str) else reason
    return lambda req, _count: setattr(req, "finished_reason", made)


@pytest.mark.parametrize("reason", [None, "stop"])
def test_state_goes_with_the_step_that_ends_its_request_and_not_before(reason):
    req, state = kept()

    finish(ends_with(reason), req)
    gc.collect()

    assert (state() is None) == (reason is not None)
    assert (rows_of([req.sampling_params.custom_params]) == [None]) == (reason is not None)


class Unreported(Keeps):
    def report(self, params, prompt_ids, output_ids, forced):
        raise ValueError("nothing to say")


def test_an_answer_whose_report_fails_is_an_error_that_names_the_processor():
    req, state = kept(Unreported)
    finish(ends_with("stop"), req)
    gc.collect()

    assert state() is None
    reason = req.finished_reason
    assert reason.message == "Unreported failed in its report: 'ValueError: nothing to say'"
    assert reason.status_code == 500


@pytest.mark.parametrize("broken", ["update_finish_state", "report", "detach_row"])
def test_whatever_fails_at_the_end_of_an_answer_it_is_an_error(monkeypatch, broken):
    def fails(*_args):
        raise RuntimeError(broken)

    req, _ = kept()
    monkeypatch.setattr(release, broken, fails)
    finish(ends_with("stop"), req)

    assert req.finished_reason.status_code == 500
    assert req.finished_reason.message.startswith("internal error of sglang-lp")


def test_an_error_stays_the_error_that_it_is(monkeypatch):
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    monkeypatch.setattr(release, "report", lambda _req: 1 / 0)
    req, _ = kept()
    gone = FINISH_ABORT("the client left")
    finish(ends_with(gone), req)

    assert req.finished_reason is gone


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
