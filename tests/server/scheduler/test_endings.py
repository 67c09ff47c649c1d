"""Where a request ends that a processor ends, on SGLang's own requests."""

from __future__ import annotations

import weakref
from array import array
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_MATCHED_STR, Req
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_lp.errors import ProcessorFault, Unsupported
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.scheduler import endings
from sglang_lp.server.scheduler.endings import end_request, end_with_token, update_finish_state
from sglang_lp.server.scheduler.reasons import error_of, error_reason
from sglang_lp.server.scheduler.sampling import rewind
from sglang_lp.server.scheduler.withheld import withhold

STOP = 5


def request(max_new_tokens=100):
    sampling = SamplingParams(max_new_tokens=max_new_tokens, stop_token_ids=[STOP])
    sampling.normalize(None)
    return Req("a request", "", [1, 2], sampling, vocab_size=100)


def commit(req, *token_ids):
    """Do what SGLang does with a result."""
    req.output_ids.extend(token_ids)
    update_finish_state(Req.update_finish_state, req, len(token_ids))


def end(req):
    """Return how a request ended, and with how many tokens."""
    return req.finished_reason and (req.finished_reason.to_json(), req.finished_len)


def test_a_request_ends_with_that_token_although_the_step_accepted_more():
    req = request()
    commit(req, 10)
    reason = FINISH_MATCHED_STR("enough")
    end_with_token(req, [], [11, 12], reason)
    commit(req, 11, 12, 13, 14)
    assert req.finished_reason is reason
    assert [*req.output_ids_through_stop] == [10, 11, 12, 13]


def test_what_a_node_that_was_not_accepted_decided_does_not_count():
    req = request()
    end_with_token(req, [], [11, 12], FINISH_ABORT("a fault"))
    commit(req, 11, 99, 13, 14)
    assert not req.finished()
    commit(req, 11, 12)
    assert not req.finished()


def test_nor_does_it_where_the_step_ended_before_the_node():
    req = request()
    end_with_token(req, [], [11, 12], FINISH_ABORT("a fault"))
    commit(req, 11)
    commit(req, 12, 13)
    assert not req.finished()


def test_an_end_waits_for_the_pending_result_to_be_processed():
    req = request()
    reason = FINISH_MATCHED_STR("enough")
    end_with_token(req, [10], [], reason)
    commit(req, 10)
    assert not req.finished()
    commit(req, 11)
    assert req.finished_reason is reason
    assert req.finished_len == 2


@pytest.mark.parametrize(("limit", "tokens"), [(100, [10, STOP, 12, 13]), (2, [10, 11, 12, 13])])
def test_sglangs_own_end_at_an_earlier_token_stands(limit, tokens):
    req, alone = request(limit), request(limit)
    end_with_token(req, [], tokens[:2], FINISH_ABORT("a fault"))
    commit(req, *tokens)
    commit(alone, *tokens)
    assert end(req) == end(alone)
    assert req.finished_len == 2


def test_a_later_end_of_sglangs_own_gives_way():
    req = request()
    end_with_token(req, [], [], FINISH_MATCHED_STR("enough"))
    commit(req, 10, STOP)
    assert (req.finished_reason.matched, req.finished_len) == ("enough", 1)


def test_what_ended_the_request_from_outside_stands():
    req = request()
    end_with_token(req, [], [], FINISH_MATCHED_STR("enough"))
    req.to_finish = FINISH_ABORT("the client left")
    commit(req, 10)
    assert req.finished_reason.message == "the client left"


def test_the_first_of_several_ends_counts():
    req = request()
    for path in ([10, 11], [10], [10, 11, 12]):
        end_with_token(req, [], path, FINISH_MATCHED_STR(str(len(path))))
    commit(req, 10, 11, 12, 13)
    assert (req.finished_reason.matched, req.finished_len) == ("1", 2)


@pytest.mark.parametrize("fails_first", [False, True])
def test_an_error_has_precedence_over_the_last_token_that_it_spoils(fails_first):
    req, failed = request(), error_reason(ProcessorFault("a conflict"))
    reasons = [FINISH_MATCHED_STR("enough"), failed]
    for reason in reversed(reasons) if fails_first else reasons:
        end_with_token(req, [], [], reason)
    commit(req, 10)
    assert req.finished_reason is failed
    assert [*req.output_ids_through_stop] == []


@pytest.mark.parametrize(
    "error", [ProcessorFault("it failed", "Own"), Unsupported("n: expected 1")]
)
@pytest.mark.parametrize("when", [{}, {"begun": False}, {"kept": 1}])
def test_log_metric_status_and_code_of_an_end_are_those_of_its_error(
    error, when, monkeypatch, caplog
):
    counted = []
    monkeypatch.setattr(endings, "writing", lambda: SimpleNamespace(fail=counted.append))
    # SGLang's own asks for the rank of its process.
    monkeypatch.setattr(Req, "set_finish_with_abort", lambda *_: None)
    req, coded = request(), Coded.of(error)
    req.output_ids.extend([10, 11])
    end_request(req, error, **when)

    reason = req.finished_reason if "kept" in when else req.to_finish
    assert (error_of(reason), reason.status_code) == (coded, coded.status)
    assert Coded.of_reason(reason.to_json()) == coded._replace(culprit=None)
    assert req.finished_len == when.get("kept")
    assert counted == ([coded] if when else [])  # else with its report
    told = f"ended: {error}" in caplog.text
    assert told == (not (coded.by_client and "begun" in when))


def test_an_end_that_cannot_be_counted_is_an_end(monkeypatch, caplog):
    monkeypatch.setattr(endings, "writing", lambda: SimpleNamespace(fail=None))
    req = request()
    end_request(req, kept=0)

    assert req.finished_reason.status_code == 500
    assert "not counted" in caplog.text


def test_a_server_that_only_prefills_is_told_at_once():
    req = request()
    req.disagg_kv_sender = object()
    end_with_token(req, [], [], reason := FINISH_ABORT("a fault"))
    assert req.to_finish is reason


def test_a_failed_request_whose_output_a_retraction_drops_ends_with_its_error():
    """SGLang drops the output of a request with ``input_embeds``, whose row is edited no more."""
    req, failed = request(), error_reason(ProcessorFault("a conflict"))
    commit(req, 10)
    end_with_token(req, [11], [], failed)
    end_with_token(req, [11], [12], error_reason(ProcessorFault("at a draft")))
    commit(req, 11)
    req.output_ids = array("q")
    rewind(None, req)
    commit(req, 30)
    assert req.finished_reason is failed
    assert [*req.output_ids_through_stop] == []


def test_an_end_that_was_decided_for_a_dropped_output_does_not_come():
    req = request()
    commit(req, 10)
    end_with_token(req, [], [], FINISH_MATCHED_STR("enough"))
    req.output_ids = array("q")
    rewind(None, req)
    commit(req, 30)
    commit(req, 31)
    assert not req.finished()


def test_nothing_is_kept_once_it_is_decided():
    req = request()
    before = set(vars(req))
    end_with_token(weakref.proxy(req), [], [10], FINISH_ABORT("a fault"))
    commit(req, 99)
    assert set(vars(req)) == before


@given(
    # Few kinds of token, so that rejected drafts often begin like the accepted tokens.
    tokens=st.lists(st.sampled_from([3, 4, STOP]), min_size=1, max_size=12),
    ends=st.sets(st.integers(1, 12)),
    # For the step at each token: how many it accepts, and a draft.
    steps=st.lists(
        st.tuples(st.integers(1, 4), st.lists(st.sampled_from([3, 4]), max_size=3)),
        min_size=12,
        max_size=12,
    ),
    limit=st.integers(1, 12),
    overlap=st.booleans(),
)
def test_it_ends_as_it_would_one_token_a_step(tokens, ends, steps, limit, overlap):
    # The oracle: the first token, counted from one, that ends the request.
    last = min(
        [*ends, limit, *(n + 1 for n, token in enumerate(tokens) if token == STOP)],
    )
    reason = FINISH_MATCHED_STR("enough")
    req, at, pending = request(limit), 0, []
    while at < len(tokens) and not req.finished():
        # A processor ends the request at these lengths, and at every drafted token that was not
        # accepted.
        length, draft = steps[at]
        accepted = tokens[at : at + length]
        for n in range(len(accepted)):
            if at + n + 1 in ends:
                end_with_token(req, pending, accepted[:n], reason)
        if accepted[: len(draft)] != draft:
            end_with_token(req, pending, draft, FINISH_ABORT("not accepted"))
        if pending or not overlap:
            commit(req, *(pending if overlap else accepted))
        at += len(accepted)
        pending = accepted if overlap else []
    if pending and not req.finished():
        commit(req, *pending)
    if last > len(tokens):
        assert not req.finished()
    else:
        assert req.finished_len == last
        assert (req.finished_reason is reason) == (last in ends)


def masked(count):
    """Return a request that asks for masks, after so many tokens."""
    sampling = SamplingParams(max_new_tokens=9)
    req = Req("a request", "", [1, 2], sampling, vocab_size=100, return_sampling_mask=True)
    req.output_ids.extend(range(10, 10 + count))
    return req


def test_a_request_whose_token_is_withheld_sends_no_masks_and_still_asks_for_them():
    # SGLang's scheduler ends if a pending result has the masks of another number of requests.
    req = masked(2)

    for kept in (1, 0):  # an error may come to an answer that ended with one
        withhold(req, kept)
        assert req.finished_len == kept

    req.sampling_mask_rows.append([10], [0.0])
    assert req.return_sampling_mask
    assert [*req.sampling_mask_rows.take().lengths] == []


def test_masks_in_lists_of_sglang_0_5_20_are_withheld_too():
    req = masked(1)
    req.sampling_mask_rows = None
    req.output_token_sampling_mask, req.output_token_sampling_logprobs = [[10, 11]], [0.0]

    withhold(req, 0)

    for masks in (req.output_token_sampling_mask, req.output_token_sampling_logprobs):
        masks.append([12])
        assert masks[0 : len(masks)] == []


def test_the_logprob_of_a_withheld_first_token_is_not_sent():
    for kept, is_sent in ((1, True), (0, False)):
        req = request()
        req.return_logprob = True
        req.output_ids.extend([10, 11])
        withhold(req, kept)
        assert (req.finished_len, req.return_logprob) == (kept, is_sent)


def test_the_first_error_of_a_request_stands_and_no_token_of_a_failed_step_is_kept():
    req = request()
    req.output_ids.extend([10])
    req.to_finish = left = FINISH_ABORT("the client left")
    end_request(req, ProcessorFault("it failed"))
    assert req.to_finish is left

    commit(req, 11)
    assert req.finished_reason is left
    assert [*req.output_ids_through_stop] == [10]


def test_an_error_of_the_client_explains_an_earlier_one_of_the_server_and_not_the_reverse():
    ours, own = ProcessorFault("no token is left"), Unsupported("logit_bias: expected others")
    for errors in ([ours, own], [own, ours]):
        req = request()
        for error in errors:
            end_request(req, error)
        assert req.to_finish.status_code == 400
