"""Which tokens of results that SGLang has not processed yet belong to which request.

The engine tests check that SGLang then commits these tokens; this module has the cases that are
rare on an engine.
"""

from __future__ import annotations

import weakref
from array import array
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sglang_host import SglangHost
from support.fakes.requests import Req


class Event:
    def __init__(self):
        self.waits = 0

    def synchronize(self):
        self.waits += 1


def result(mode, reqs, token_ids, **more):
    values = {"copy_done": Event(), "accept_lens": None, **more}
    if token_ids is not None:
        token_ids = torch.tensor(token_ids)
    answer = SimpleNamespace(next_token_ids=token_ids, **values)
    return SimpleNamespace(forward_mode=mode, reqs=reqs), answer


def decode(reqs, token_ids, **more):
    return result(ForwardMode.DECODE, reqs, token_ids, **more)


def extend(reqs, token_ids, **more):
    return result(ForwardMode.EXTEND, reqs, token_ids, **more)


def verify(reqs, token_ids, accept_lens, width, **more):
    fields = {
        "accept_lens": torch.tensor(accept_lens),
        "speculative_num_draft_tokens": width,
        "speculative_output_stride": None,
    }
    return decode(reqs, token_ids, **fields | more)


def pending(*results):
    return reading(SimpleNamespace(enable_overlap=True, result_queue=deque(results)))


def reading(scheduler):
    results = PendingResults()
    results.scheduler = scheduler
    return results


def test_a_decoding_step_adds_one_token_to_each_request():
    a, b = Req(), Req()
    results = pending(decode([a, b], [7, 8]))
    assert (results.of(a), results.of(b)) == ([7], [8])


def test_a_verify_step_adds_what_it_accepted():
    a, b = Req(), Req()
    results = pending(verify([a, b], [1, 2, 3, 4, 5, 6], [2, 1], 3))
    assert (results.of(a), results.of(b)) == ([1, 2], [4])


def test_rows_are_as_wide_as_the_result_says():
    a, b = Req(), Req()
    results = pending(verify([a, b], [1, 2, 3, 4], [2, 1], 9, speculative_output_stride=2))
    assert (results.of(a), results.of(b)) == ([1, 2], [3])


def test_several_results_add_up_oldest_first():
    req = Req()
    assert pending(extend([req], [1]), verify([req], [2, 3, 4], [2], 3)).of(req) == [1, 2, 3]


@pytest.mark.parametrize(
    ("chunks", "batches", "tokens", "discards"),
    [
        (0, 1, [1], False),  # the last chunk is pending
        (1, 0, [], True),  # this is a chunk in the middle
        (1, 1, [], False),  # one is pending, and this is the last
        (2, 1, [], True),  # one chunk is pending, and this is another
        (2, 2, [], False),
        (1, 2, [2], False),  # one chunk is pending, and the last chunk after it
    ],
)
def test_only_the_last_chunk_of_a_prefill_samples_a_token(chunks, batches, tokens, discards):
    req, other = Req(inflight_middle_chunks=chunks), Req()
    results = pending(*(extend([other, req], [9, n + 1]) for n in range(batches)))
    assert [*results.of(req)] == tokens
    assert results.discards(req) == discards
    assert not results.discards(other)


@pytest.mark.parametrize(
    ("chunks", "before", "discards"),
    [(0, 0, False), (1, 0, True), (1, 1, False), (2, 1, True), (2, 2, False)],
)
def test_a_pipeline_rank_counts_the_chunks_in_its_other_batches(chunks, before, discards):
    req, other = Req(inflight_middle_chunks=chunks), Req()
    step, *batches = [SimpleNamespace(reqs=[other, req]) for _ in range(before + 1)]
    results = reading(SimpleNamespace(enable_overlap=False, mbs=[*batches, None, step]))
    assert results.discards(req) == discards
    assert not results.discards(other)


def test_results_that_sglang_will_drop_are_left_out():
    finished, retracted = Req(finished_reason="stop"), Req(is_retracted=True)
    results = pending(decode([finished, retracted], [7, 8]))
    assert not results.of(finished)
    assert not results.of(retracted)


@pytest.mark.parametrize("chunks", [0, 1])
def test_the_step_that_is_being_sampled_is_not_pending(chunks):
    req = Req(inflight_middle_chunks=chunks)
    results = pending(extend([req], None))
    assert not results.of(req)
    assert results.discards(req) == bool(chunks)


def test_another_request_has_none():
    assert not pending(decode([Req()], [7])).of(Req())


def test_a_proxy_of_a_request_is_that_request():
    req = Req()
    assert pending(decode([req], [7])).of(weakref.proxy(req)) == [7]


def test_nothing_is_waited_for_until_somebody_asks_and_then_once_a_step():
    req = Req()
    batch, answer = decode([req], [7])
    results = pending((batch, answer))
    results.begin()
    assert not results.discards(req)
    assert answer.copy_done.waits == 0
    results.of(req)
    results.of(Req())
    assert answer.copy_done.waits == 1
    results.begin()
    results.of(req)
    assert answer.copy_done.waits == 2


@pytest.mark.parametrize(("drafts", "waits"), [(False, 0), (True, 1)])
def test_a_position_is_waited_for_only_where_a_step_may_commit_several_tokens(drafts, waits):
    req = Req()
    batch, answer = decode([req], [7])
    results = reading(
        SimpleNamespace(
            enable_overlap=True,
            result_queue=deque([(batch, answer)]),
            spec_algorithm=SimpleNamespace(is_none=lambda: not drafts),
        )
    )
    req.origin_input_ids, req.finished_reason = array("q", [1, 2]), None
    req.kv = SimpleNamespace(kv_committed_len=0 if drafts else 3)
    *_, position, counts = SglangHost(req, results).look(tokens=False)
    assert (position, counts) == (1, True)
    assert answer.copy_done.waits == waits
    req.inflight_middle_chunks = 2
    *_, counts = SglangHost(req, results).look(tokens=False)
    assert not counts


def test_a_scheduler_may_put_another_queue_in_place():
    scheduler = SimpleNamespace(enable_overlap=True, result_queue=deque())
    results, req = reading(scheduler), Req()
    assert not results.of(req)
    scheduler.result_queue = deque([decode([req], [7])])
    results.begin()
    assert results.of(req) == [7]


def test_a_process_without_a_scheduler_has_no_results():
    assert not PendingResults().of(Req())
    assert PendingResults().discards(Req(inflight_middle_chunks=1))


def test_a_scheduler_without_overlap_has_nothing_that_waits():
    results = reading(SimpleNamespace(enable_overlap=False))  # no queue, before SGLang 0.5.23

    assert results.of(Req()) == ()
