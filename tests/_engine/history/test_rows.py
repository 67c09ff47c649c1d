"""Edge cases of a request's history."""

import logging
import math
from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history import lag as lag_module
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp._engine.history.host import Host
from sglang_lp._engine.history.row_state import RowState
from sglang_lp.builtins import (
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from sglang_lp.errors import Unsupported
from sglang_lp.links import Serving
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest

VOCAB = 12
BUDGET = {
    "thinking_budget": 2,
    "thinking_start_token_id": 1,
    "thinking_end_token_id": 2,
    "new_line_token_id": 3,
}


class Recorder(LogitProcessor):
    """Records what it is told, in the order in which it is told."""

    log: list

    def start(self, request):
        self.log.append(("start", [*request.prompt_ids]))
        return []

    def advance(self, request, token_ids):
        self.log.append(("advance", [*token_ids]))
        request.state.extend(token_ids)

    def edit(self, request, edits):
        self.log.append(("edit", request.position, [*request.state]))


class Waits(Recorder):
    """Does not look before the fifth token."""

    def edit(self, request, edits):
        super().edit(request, edits)
        edits.wake_at(5)


def recorded(cls=Recorder, **more):
    """Return a request served by a recorder, and the record."""
    log = []
    served = type(cls.__name__, (cls,), {"log": log, **more})
    request = FakeRequest([1, 2, 3], served=True)
    params = request.custom_params({})
    attach_row(
        params, [Serving(served(), served.parse_params({}))], StockHost(request, may_lag=False)
    )
    return request, params, log


def step(params, batch=None, **kwargs):
    logits = torch.zeros(1, VOCAB)
    (batch or Batch()).step(logits, rows_of([params]), [params], **kwargs)
    return logits[0].tolist()


def test_each_token_comes_once_and_in_order():
    request, params, log = recorded()
    for token_id in (7, 8):
        step(params)
        request.append(token_id)
    step(params)

    assert log == [
        ("start", [1, 2, 3]),
        ("edit", 0, []),
        ("advance", [7]),
        ("edit", 1, [7]),
        ("advance", [8]),
        ("edit", 2, [7, 8]),
    ]


def test_tokens_that_come_while_a_row_sleeps_come_all_at_once():
    request, params, log = recorded(Waits)
    for token_id in (4, 5, 6, 7, 8):
        step(params)
        request.append(token_id)
    step(params)

    assert log == [
        ("start", [1, 2, 3]),
        ("edit", 0, []),
        ("advance", [4, 5, 6, 7, 8]),
        ("edit", 5, [4, 5, 6, 7, 8]),
    ]


def test_a_row_that_moves_to_another_batch_does_not_oversleep():
    request, params, log = recorded(Waits)
    busy = Batch()
    for _ in range(1000):
        step(None, busy)
    step(params, busy)
    quiet = Batch()
    for token_id in (4, 5, 6, 7, 8):
        request.append(token_id)
        step(params, quiet)

    assert log[-1][:2] == ("edit", 5)


@pytest.mark.parametrize("committed", [1, 2, 3, 4])
def test_a_step_whose_result_is_thrown_away_is_not_looked_at(committed):
    request, params, log = recorded()
    request.append(7)
    request.append(8)
    request.kv.kv_committed_len = committed

    assert step(params) == [0.0] * VOCAB
    assert log == []


def test_a_request_that_has_just_finished_is_not_looked_at():
    request, params, log = recorded()
    step(params)
    request.append(7)
    request.finished_reason = "what SGLang says"
    step(params)

    assert log == [("start", [1, 2, 3]), ("edit", 0, [])]


def test_a_request_that_is_retracted_goes_on_where_it_was():
    request, params, log = recorded()
    request.append(7)
    step(params)
    for committed in (0, 2, 3):
        request.kv.kv_committed_len = committed
        step(params)
    request.commit()
    step(params)

    assert log == [
        ("start", [1, 2, 3]),
        ("advance", [7]),
        ("edit", 1, [7]),
        ("edit", 1, [7]),
    ]


def test_a_sleeping_row_looks_again_at_a_position_that_is_sampled_again():
    _request, params, log = recorded(Waits)
    batch = Batch()
    step(params, batch)
    (row,) = rows_of([params])
    row.rewind()
    step(params, batch)

    assert log == [("start", [1, 2, 3]), ("edit", 0, []), ("edit", 0, [])]


def test_a_row_whose_request_has_ended_never_looks_again():
    pytest.importorskip("sglang")
    _request, params, log = recorded()
    (row,) = rows_of([params])
    row.end(Unsupported("any reason"))
    row.rewind()
    step(params)

    assert log == []


def test_a_request_may_arrive_with_tokens():
    request, params, log = recorded()
    request.append(7)
    request.append(8)
    step(params)

    assert log == [("start", [1, 2, 3]), ("advance", [7, 8]), ("edit", 2, [7, 8])]


def test_a_new_array_with_the_same_tokens_changes_nothing():
    request, params, log = recorded()
    request.append(7)
    step(params)
    request.output_ids = array("q", [7])
    request.origin_input_ids = array("q", [1, 2, 3])
    request.append(8)
    step(params)

    assert log[-2:] == [("advance", [8]), ("edit", 2, [7, 8])]
    assert log.count(("start", [1, 2, 3])) == 1


@pytest.mark.parametrize("output_ids", [[9, 8], [7, 9], [7], [], [9, 8, 7]])
def test_a_rewritten_history_starts_anew(output_ids):
    request, params, log = recorded()
    request.append(7)
    request.append(8)
    step(params)
    log.clear()
    request.output_ids = array("q", output_ids)
    request.commit()
    step(params)

    advanced = [("advance", output_ids)] if output_ids else []
    assert log == [("start", [1, 2, 3]), *advanced, ("edit", len(output_ids), output_ids)]


def test_a_rewritten_prompt_starts_anew():
    request, params, log = recorded()
    step(params)
    request.origin_input_ids = array("q", [1, 2])
    request.commit()
    step(params)

    assert log[-2:] == [("start", [1, 2]), ("edit", 0, [])]


def test_history_cut_short_in_place_starts_anew():
    request, params, log = recorded()
    request.append(7)
    request.append(8)
    step(params)
    request.output_ids.pop()
    request.commit()
    step(params)

    assert log[-3:] == [("start", [1, 2, 3]), ("advance", [7]), ("edit", 1, [7])]


def test_edits_that_never_change_are_asked_for_once():
    request, params, log = recorded(needs=History.NONE)
    for token_id in (7, 8):
        step(params)
        request.append(token_id)

    assert log == [("start", [1, 2, 3]), ("edit", 0, [])]


def test_edits_that_never_change_see_the_prompt_even_in_a_middle_chunk():
    request, params, log = recorded(needs=History.NONE)
    request.kv.kv_committed_len = 1
    step(params)

    assert log[0] == ("start", [1, 2, 3])


def test_edits_that_never_change_reach_their_row_wherever_it_is():
    batch = Batch()
    requests = []
    for token_id in range(4):
        request = FakeRequest([1]).custom_params({"token_ids": [token_id]})
        DisallowedTokensLogitsProcessor()(torch.zeros(1, VOCAB), [request])
        requests.append(request)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2], [1, 2], [2, 1], [0, 1, 2, 3]):
        for dtype in (torch.float32, torch.float16):
            for width in (VOCAB, VOCAB + 3):
                logits = torch.zeros(len(order), width, dtype=dtype)
                params = [requests[i] for i in order]
                batch.step(logits, rows_of(params), params)
                banned = (logits == -math.inf).nonzero().tolist()
                assert banned == [[row, i] for row, i in enumerate(order)]


def test_requests_of_one_prompt_have_a_state_each():
    log = []
    served = type("Served", (Recorder,), {"log": log})
    requests = [FakeRequest([1, 2]) for _ in range(4)]
    params = [request.custom_params({}) for request in requests]
    processor = served()
    processor(torch.zeros(4, VOCAB), params)
    for i, request in enumerate(requests):
        request.append(i)
    log.clear()
    processor(torch.zeros(4, VOCAB), params)

    assert [entry[2] for entry in log if entry[0] == "edit"] == [[0], [1], [2], [3]]


def test_a_copied_dict_does_not_bring_another_requests_state():
    log = []
    served = type("Served", (Recorder,), {"log": log})
    first = FakeRequest([1], [7]).custom_params({})
    served()(torch.zeros(1, VOCAB), [first])
    second = {**first, "__req__": FakeRequest([2], [8])}
    log.clear()

    served()(torch.zeros(2, VOCAB), [first, second])

    assert log == [("edit", 1, [7]), ("start", [2]), ("advance", [8]), ("edit", 1, [8])]


# Rows repeated for drafted tokens (speculative decoding)


@pytest.mark.parametrize("leading_none", [False, True])
def test_repeated_rows_are_refused_and_not_guessed(leading_none):
    pytest.importorskip("sglang")
    request, params, log = recorded()
    other = FakeRequest([1], served=True)
    rows = [*([None, None] if leading_none else []), params, params]
    logits = torch.zeros(len(rows), VOCAB)

    type(rows_of([params])[0].turns[0].processor)()(logits, rows)

    assert not logits.any()
    assert log == []
    assert "speculative" in request.to_finish.message
    assert request.to_finish.status_code == 400
    assert other.to_finish is None


def test_repeated_rows_get_edits_that_need_no_history():
    request = FakeRequest([1], served=True)
    params = request.custom_params({"token_ids": [5]})
    processor = DisallowedTokensLogitsProcessor()
    for _ in range(3):
        logits = torch.zeros(4, VOCAB)
        processor(logits, [params] * 4)
        assert (logits == -math.inf).nonzero().tolist() == [[row, 5] for row in range(4)]
    assert request.to_finish is None


def test_a_request_refused_for_drafts_is_told_once(caplog):
    pytest.importorskip("sglang")
    _, params, _ = recorded()
    batch = Batch()
    for _ in range(3):
        batch.step(torch.zeros(2, VOCAB), rows_of([params] * 2), [params] * 2, repeated=True)

    assert len([r for r in caplog.records if " ended: " in r.message]) == 1


def test_without_a_server_repeated_rows_are_an_error():
    params = FakeRequest([1]).custom_params({"token_ids": [3]})
    with pytest.raises(Unsupported, match="speculative"):
        ForcedSequenceLogitProcessor()(torch.zeros(2, VOCAB), [params, params])


# A server without the plugin, whose newest token is not in the history yet


class Lagging:
    """A request one token behind, as under overlap scheduling."""

    def __init__(self, prompt_ids, params, stream):
        self.request = FakeRequest(prompt_ids, stream[:-1], served=True)
        self.request.kv.kv_committed_len += 1
        self.params = self.request.custom_params(params)


def test_a_forced_sequence_needs_no_value_of_the_newest_token():
    lagging = Lagging([1], {"token_ids": [7, 8, 9]}, [7, 8])
    logits = torch.zeros(1, VOCAB)

    ForcedSequenceLogitProcessor()(logits, [lagging.params])

    assert logits.isfinite().nonzero().tolist() == [[0, 9]]


def test_a_processor_that_cannot_see_its_history_says_so_once(caplog, monkeypatch):
    monkeypatch.setattr(lag_module, "_reported", set())
    blind = type("Blind", (Recorder,), {"log": []})
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            lagging = Lagging([1], {}, [7, 8])
            logits = torch.zeros(1, VOCAB)
            blind()(logits, [lagging.params])
            assert not logits.any()
            assert lagging.request.to_finish is None

    (record,) = caplog.records
    assert blind.log == []
    for words in ("Blind", "plugin", "SGLANG_ENABLE_DELAY_SAMPLE=1", "--disable-overlap-schedule"):
        assert words in record.getMessage()


def test_a_processor_is_told_when_its_history_may_lag():
    seen = []

    class Tolerant(LogitProcessor):
        tolerates_lag = True

        def edit(self, request, edits):
            seen.append((request.exact, request.may_lag, request.position, [*request.output_ids]))

    lagging = Lagging([1], {}, [7, 8])
    Tolerant()(torch.zeros(1, VOCAB), [lagging.params])
    lagging.request.append(8)
    Tolerant()(torch.zeros(1, VOCAB), [lagging.params])

    assert seen == [(False, True, 2, [7]), (True, True, 2, [7, 8])]


def test_a_budget_closes_a_block_without_seeing_its_own_tokens():
    request = FakeRequest([1], served=True)
    params = request.custom_params(BUDGET)
    processor, stream = ThinkingBudgetLogitProcessor(), []
    for _ in range(6):
        logits = torch.zeros(1, VOCAB)
        logits[0, 9] = 1.0
        request.kv.kv_committed_len = 1 + len(stream)
        processor(logits, [params])
        stream.append(int(logits[0].argmax()))
        request.output_ids = array("q", stream[:-1])

    assert stream == [9, 9, 3, 2, 9, 9]


def test_parameters_are_parsed_once_for_a_request():
    parsed = []

    class Counts(LogitProcessor):
        needs = History.POSITION

        class Params(Parameters, frozen=True):
            value: int

        @classmethod
        def parse_params(cls, custom_params, vocab_size=None):
            parsed.append(vocab_size)
            return super().parse_params(custom_params, vocab_size)

        def edit(self, request, edits):
            pass

    params = FakeRequest([1]).custom_params({"value": 3})
    for _ in range(3):
        Counts()(torch.zeros(1, VOCAB), [params])

    assert parsed == [VOCAB]


class Holds(Recorder):
    """Bans a token before the third position, and another from there on."""

    def edit(self, request, edits):
        super().edit(request, edits)
        edits.ban([4 if request.position < 3 else 5])
        edits.hold_until(3 if request.position < 3 else 1000)


def test_edits_that_hold_are_asked_for_again_at_their_end():
    request, params, log = recorded(Holds)
    rows = []
    for token_id in (7, 8, 9, 10, 11):
        rows.append(step(params))
        request.append(token_id)

    assert [[i for i in range(VOCAB) if row[i] == -math.inf] for row in rows] == [
        *[[4]] * 3,
        *[[5]] * 2,
    ]
    assert [entry[1] for entry in log if entry[0] == "edit"] == [0, 3]


def test_edits_that_hold_do_so_beside_those_that_always_do():
    class Both(Holds):
        def edit(self, request, edits):
            super().edit(request, edits)
            if request.position == 0:
                edits.always().ban([6])

    request, params, _ = recorded(Both)
    shut = []
    for token_id in (7, 8, 9, 10):
        row = step(params)
        shut.append([i for i in range(VOCAB) if row[i] == -math.inf])
        request.append(token_id)

    assert shut == [[4, 6], [4, 6], [4, 6], [5, 6]]


def test_edits_that_hold_end_with_a_history_that_is_rewritten():
    request, params, log = recorded(Holds)
    step(params)
    for token_id in (7, 8, 9):
        request.append(token_id)
        step(params)
    request.output_ids = array("q", [1])
    request.commit()
    attached = rows_of([params])[0]
    attached.wake = 0

    row = step(params)

    assert [i for i in range(VOCAB) if row[i] == -math.inf] == [4]
    assert log[-1] == ("edit", 1, [1])


def test_copies_share_what_their_long_lists_amount_to():
    custom_params = [
        FakeRequest([1]).custom_params({"token_ids": [i % 300 for i in range(400)]})
        for _ in range(3)
    ]
    custom_params[2]["token_ids"][0] = 301
    logits = torch.zeros(3, 302)
    DisallowedTokensLogitsProcessor()(logits, custom_params)

    one, copy, other = (row.persistent for row in rows_of(custom_params))
    assert one is copy
    assert other is not one
    assert [row.count(0.0) for row in logits.tolist()] == [2, 2, 1]


@pytest.mark.parametrize(
    ("ids", "count", "expected"),
    [
        ([3], 1, True),
        ([2], 1, False),
        ([0, 2], 1, False),
        ([2], 2, True),
        ([0], 2, True),  # shares the second place
        ([4], 3, False),
        ([4], 4, True),
        ([5], 4, False),
        ([1], 12, False),  # masked
        ([1, 3], 1, True),
    ],
)
def test_a_token_is_among_the_likeliest_if_few_logits_are_larger(ids, count, expected):
    answers = []

    class Asks(Recorder):
        def edit(self, request, edits):
            answers.append(request.is_among_top(ids, count))

    _, params, _ = recorded(Asks)
    logits = torch.tensor([[2.0, -math.inf, 2.0, 3.0, 1.0, 0.5]])
    Batch().step(logits, rows_of([params]), [params])

    assert answers == [expected]


@given(
    row=st.lists(st.sampled_from([-math.inf, 0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=70),
    asked=st.lists(st.tuples(st.integers(0, 69), st.integers(1, 70)), min_size=1, max_size=3),
)
def test_however_often_it_is_asked_each_token_has_its_rank(row, asked):
    answers = []

    class Asks(Recorder):
        def edit(self, request, edits):
            for token_id, count in asked:
                answers.append(request.is_among_top([token_id % len(row)], count))

    _, params, _ = recorded(Asks)
    Batch().step(torch.tensor([row]), rows_of([params]), [params])

    for (token_id, count), answer in zip(asked, answers, strict=True):
        own = row[token_id % len(row)]
        assert answer == (own > -math.inf and sum(other > own for other in row) < count)


def test_a_row_that_its_processor_changes_is_read_anew():
    answers = []

    class Asks(Recorder):
        def edit(self, request, edits):
            answers.append(request.is_among_top([0], 1))
            request.logits[0] = 5.0
            answers.append(request.is_among_top([0], 1))
            request.logits[1] = 6.0
            answers.append(request.is_among_top([0], 1))

    _, params, _ = recorded(Asks)
    Batch().step(torch.tensor([[1.0, 2.0]]), rows_of([params]), [params])

    assert answers == [False, True, False]


def test_a_processor_starts_when_its_request_arrives():
    request, params, log = recorded()
    (row,) = rows_of([params])
    row.start()
    assert log == [("start", [1, 2, 3])]

    request.append(7)
    step(params)
    assert log == [("start", [1, 2, 3]), ("advance", [7]), ("edit", 1, [7])]


def test_a_prompt_that_is_replaced_after_the_arrival_is_read_again():
    request, params, log = recorded()
    (row,) = rows_of([params])
    row.start()
    request.origin_input_ids = array("q", [1, 1_000_000, 3])
    step(params)

    assert log == [("start", [1, 2, 3]), ("start", [1, 1_000_000, 3]), ("edit", 0, [])]


def test_along_a_draft_edits_hold_up_to_their_end_and_no_further():
    request, params, _ = recorded(Holds)
    drafts = Drafts(2, [[1, 9]], [[1, -1]], [[-1, -1]])
    shut = []
    for _ in range(5):
        logits = torch.zeros(2, VOCAB)
        Batch().step(logits, rows_of([params]), [params], drafts=lambda: drafts, width=2)
        shut += [[i for i in range(VOCAB) if row[i] == -math.inf] for row in logits.tolist()]
        request.append(9)

    assert shut == [[4], [4], [4], [4], [4], [5], [5], [5], [5], [5]]


class Early(Recorder):
    early = True


def test_a_row_shows_its_state_and_when_it_wakes():
    request, params, _ = recorded(Early)
    (row,) = rows_of([params])
    assert repr(row) == "<Row Early: unstarted, 0 tokens fed, awake>"

    row.start()
    row.ask_early(VOCAB)
    assert row.state is RowState.ASKED

    step(params)
    request.append(7)
    step(params)
    assert repr(row) == "<Row Early: running, 1 tokens fed, awake>"

    row.restart()
    assert not row.started


def test_a_row_sleeps_for_as_many_tokens_as_its_processor_promised():
    _, params, _ = recorded(Waits)
    step(params)

    assert repr(rows_of([params])[0]).endswith("asleep for 4 tokens>")


def test_a_row_that_waits_runs_once_its_prompt_and_the_resumed_tokens_are_fed():
    request, params, log = recorded()
    host = Host(request)
    host.resumed = 2
    row = attach_row(params, [Serving(Recorder(), None)], host)
    row.turns[0].processor.log = log
    row.wait()
    assert (row.state, row.started, row.unread) == (RowState.WAITING, False, True)

    row.start()
    assert row.resume(1) == 1
    assert (row.state, row.started, row.unread) == (RowState.RESUMING, True, True)

    assert row.resume() == 0
    assert row.state is RowState.RUNNING
    assert log == [("start", [1]), ("advance", [2]), ("advance", [3])]


@pytest.mark.slow  # SGLang's own reason ends it
def test_a_row_that_has_ended_takes_part_in_no_further_step():
    _, params, log = recorded()
    (row,) = rows_of([params])
    row.end(Unsupported("why"))
    row.restart()
    row.rewind()
    row.wake = 0
    step(params)

    assert row.state is RowState.ENDED
    assert log == []
