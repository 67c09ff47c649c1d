"""Pipeline ranks do with a request what one rank would do, from the last rank's decisions."""

from __future__ import annotations

import logging
import pickle
from types import SimpleNamespace

import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_lp._engine.apply.answers import Answers, PendingAnswer
from sglang_lp._engine.history.attached import attach_row
from sglang_lp._engine.history.edit_log import EditLog
from sglang_lp.edits import LENGTH, STOP, End
from sglang_lp.errors import Contradiction, ProcessorFault, Unsupported
from sglang_lp.links import Serving
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.scheduler.endings import end_request
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.pipeline import StageHost, Stages
from sglang_lp.server.scheduler.reasons import error_of
from sglang_lp.server.scheduler.release import finish
from sglang_lp.server.scheduler.sglang_host import SglangHost
from sglang_lp.wire.names import REPORT


class Idle(LogitProcessor):
    def edit(self, request, edits):
        pass


class Rank:
    """One rank, with two requests that it has in common with the others, the first without row."""

    def __init__(self, kind=StageHost):
        self.pending = PendingResults()
        self.req = _req({"__req__": None})
        self.reqs = [_req(None), self.req]
        host = kind(self.req, self.pending)
        given = self.req.sampling_params.custom_params
        given["__req__"] = self.req
        self.row = attach_row(given, [Serving(Idle(), None)], host)
        self.stages = Stages(self.pending)
        self.batch = SimpleNamespace(reqs=self.reqs)

    def sent(self):
        """Return the tensors of a step as they arrive on another rank."""
        tensors = {"next_token_ids": torch.zeros(2)}
        self.stages.send(tensors, None, None, self.batch)
        return pickle.loads(pickle.dumps(tensors))

    def receive(self, tensors, token_id=7):
        self.stages.apply(None, self.batch, None, SimpleNamespace(tensors=tensors))
        self.commit(token_id)

    def commit(self, token_id=7):
        self.req.output_ids.append(token_id)
        finish(Req.update_finish_state, self.req)

    @property
    def end(self):
        """How the request ended, how many tokens the client gets, and whose fault it was."""
        reason = self.req.finished_reason
        return reason and reason.to_json(), error_of(reason), self.req.finished_len


def _req(custom_params):
    sampling = SamplingParams(max_new_tokens=100, custom_params=custom_params)
    sampling.normalize(None)
    req = Req("a request", "", [1, 2], sampling, vocab_size=100)
    req.custom_logit_processor = "payload" if custom_params is not None else None
    return req


def answered(*answers):
    of_step = Answers()
    of_step.fetch(torch.tensor(answers))
    return of_step


#: A step: the persistent edits from it on, its own edit if there is one, and the device's answer.
STEPS = st.lists(
    st.tuples(
        st.sampled_from([None, "end", "exist", "force"]),
        st.sampled_from([None, False, True, "asks", "asks, edited"]),
        st.booleans(),
    ),
    max_size=12,
)


def edit(log, position, persistent, own, answers):
    if persistent is not None:
        log.set_persistent(position, exist=persistent != "end", forced=persistent == "force")
    if isinstance(own, str):
        own = PendingAnswer(answers, 1, is_edited=own != "asks")
    if own is not None:
        log.add(position, forced=own)


@given(STEPS)
def test_every_rank_reports_the_edits_that_one_rank_reports(steps):
    last, first, alone, tokens = Rank(), Rank(), EditLog(), []
    for position, (persistent, own, answer) in enumerate(steps):
        for log, recorder in ((last.row.edit_log, last.row.recorder), (alone, alone)):
            log.resolve(tokens)
            edit(recorder, position, persistent, own, answered(False, answer))
        tensors = last.sent()
        for rank in (first, last):
            rank.receive(tensors)
        tokens.append(7)
    reports = []
    for log in (alone, first.row.edit_log, last.row.edit_log):
        log.finish(tokens)
        reports.append(log.report(0, len(tokens)))
    assert reports[1:] == reports[:1] * 2


ENDS = [
    [End("enough", STOP)],
    [End("enough", LENGTH)],
    [ProcessorFault("it failed", "Own")],
    [Contradiction("custom_params.token_ids: no token is left")],
    [Unsupported("beam_width: expected none")],
    [End("enough", STOP), ProcessorFault("it failed")],
]


@pytest.mark.parametrize("ends", ENDS)
def test_every_rank_ends_a_request_as_one_rank_does(ends):
    last, first, alone = Rank(), Rank(), Rank(SglangHost)
    first.receive(last.sent())
    last.commit()
    alone.commit()
    for rank in (last, alone):
        for one in ends:
            (rank.row.host.finish if isinstance(one, End) else rank.row.host.end)(one)
    tensors = last.sent()
    assert not last.req.finished()
    for rank in (first, last):
        rank.receive(tensors)
    alone.commit()

    assert alone.req.finished()
    assert first.end == last.end == alone.end


def test_a_request_that_the_toolkit_failed_to_edit_ends_on_every_rank():
    last, first, alone = Rank(), Rank(), Rank(SglangHost)
    for rank in (last, alone):
        end_request(rank.req)
    tensors = last.sent()
    for rank in (first, last):
        rank.receive(tensors)
    alone.commit()

    assert alone.req.finished()
    assert first.end == last.end == alone.end


def test_decisions_that_are_lost_end_the_requests_with_processors(monkeypatch, caplog):
    def lose(*_args):
        raise MemoryError("no room")

    last, first = Rank(), Rank()
    last.row.host.finish(End("enough", STOP))
    monkeypatch.setattr(last.pending, "discards", lose)
    with caplog.at_level(logging.ERROR, logger="sglang_lp.server.scheduler.pipeline"):
        tensors = last.sent()
    for rank in (first, last):
        rank.receive(tensors)

    assert "decisions of a step are lost" in caplog.text
    assert first.end == last.end
    assert first.req.finished_reason.status_code == 500
    assert first.reqs[0].to_finish is None


def test_a_decision_that_cannot_be_sent_ends_its_own_request():
    last, first = Rank(), Rank()
    error = Unsupported("no")
    error.param = object()  # set by a foreign class
    last.row.host.end(error)
    tensors = last.sent()
    for rank in (first, last):
        rank.receive(tensors)

    assert first.end == last.end
    assert first.req.finished_reason.status_code == 500


def test_what_a_chunk_of_a_prompt_decided_waits_for_the_first_token():
    last, first = Rank(), Rank()
    # SGLang may leave out to send the result of such a step.
    last.pending.scheduler = SimpleNamespace(mbs=[None, last.batch])
    last.row.recorder.set_persistent(0, exist=True, forced=False)
    last.row.host.finish(End("enough", STOP))
    last.req.inflight_middle_chunks = 1
    assert [*last.sent()] == ["next_token_ids"]
    last.req.inflight_middle_chunks = 0
    first.receive(last.sent())

    said = first.req.finished_reason.to_json()
    assert said["matched"] == "enough"
    assert orjson.loads(said[REPORT])["edited"] == [[0, 1]]


def test_a_step_in_which_nothing_was_decided_sends_nothing():
    last = Rank()
    assert [*last.sent()] == ["next_token_ids"]


def test_a_rank_that_lacks_a_request_does_not_go_on():
    last, first = Rank(), Rank()
    last.row.host.finish(End("enough", STOP))
    first.req.sampling_params.custom_params.clear()
    with pytest.raises(LookupError, match="the same requests"):
        first.receive(last.sent())
