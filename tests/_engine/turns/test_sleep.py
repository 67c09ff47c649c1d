"""Sleeping batches look up no row, and every row wakes in time."""

from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.apply.raw import RawLogprobs
from sglang_lp._engine.history.attached import rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.testing import Played
from support.examples import examples
from support.fakes.served_batch import ServedBatch

VOCAB = 8


class Every(LogitProcessor):
    """Bans token 0 at every ``period``-th position."""

    class Params(Parameters, frozen=True):
        period: int

    def edit(self, request, edits):
        period = request.params.period
        if request.position % period == 0:
            edits.ban([0])
        edits.wake_at(request.position // period * period + period)


class Finite(Every):
    """Bans token 0 up to position ``period``, by edits that hold until then."""

    def edit(self, request, edits):
        if request.position < request.params.period:
            edits.ban([0])
            edits.hold_until(request.params.period)
        else:
            edits.rest()


def played(period, processor=Every):
    return Played(processor, {"period": period}, [1, 2], vocab_size=VOCAB)


def step(batch, requests, width=1, **how):
    """Run a step; return which requests may not say token 0 first."""

    def drafts():
        links = [*range(1, width), -1]
        count = len(requests)
        return Drafts(width, [[1] * width] * count, [links] * count, [[-1] * width] * count)

    logits = torch.zeros(len(requests) * width, VOCAB)
    params = [request.custom_params for request in requests]
    batch.run(logits, params, width=width, drafts=drafts, **how)
    return [bool(row[0] < 0) for row in logits[::width]]


def generate(requests, count=1):
    for request in requests:
        for _ in range(count):
            request.source.append(1)


def asleep(count=3, period=100):
    """Return a batch that sleeps, and its requests."""
    batch, requests = ServedBatch(), [played(period) for _ in range(count)]
    for _ in range(3):
        step(batch, requests)
        generate(requests)
    batch.looked = 0
    return batch, requests


@pytest.mark.parametrize("width", [1, 4])
def test_a_batch_whose_rows_sleep_is_not_looked_at(width):
    batch, requests = asleep()
    for _ in range(10):
        assert step(batch, requests, width) == [False] * 3
        generate(requests)

    assert batch.looked == 0


def test_a_batch_wakes_with_its_first_row():
    batch, requests = asleep()
    late = [played(7), *requests]
    shut = []
    for _ in range(15):
        shut.append(step(batch, late)[0])
        generate(late)

    assert [position for position, is_shut in enumerate(shut) if is_shut] == [0, 7, 14]
    assert batch.looked < 8


def test_wider_drafts_wake_it_earlier():
    batch, requests = asleep(period=8)
    step(batch, requests)  # positions 3
    generate(requests)

    step(batch, requests, width=5)  # reaches position 8

    assert batch.looked == 1


def test_a_request_that_joins_is_looked_at():
    batch, requests = asleep()
    new = played(100)

    assert step(batch, [*requests, new]) == [False, False, False, True]


def test_a_request_in_the_place_of_another_is_looked_at():
    batch, requests = asleep()
    new = played(100)

    assert step(batch, [*requests[:2], new]) == [False, False, True]


def test_a_request_that_is_retracted_is_looked_at():
    batch, requests = asleep()
    batch.looked = 0
    requests[1].retract()
    step(batch, requests)

    assert batch.looked == 1


def holding(count=2):
    """Return a batch that sleeps while edits hold, and its requests."""
    batch, requests = ServedBatch(), [played(50, Finite) for _ in range(count)]
    for _ in range(3):
        step(batch, requests)
        generate(requests)
    batch.looked = 0
    return batch, requests


def test_edits_that_hold_are_made_in_every_step():
    batch, requests = ServedBatch(), [played(6, Finite), played(100)]
    shut = []
    for _ in range(10):
        shut.append(step(batch, requests)[0])
        generate(requests)

    assert shut == [True] * 6 + [False] * 4


def test_edits_that_hold_are_made_without_a_look_at_any_row():
    batch, requests = holding()
    for _ in range(10):
        assert step(batch, requests) == [True, True]
        generate(requests)

    assert batch.looked == 0


def test_edits_that_hold_are_made_in_logits_of_another_layout():
    batch, requests = holding()
    for width in (3, 3, 1):
        assert step(batch, requests, width) == [True, True]
        generate(requests, width)


def test_rows_whose_edits_hold_are_looked_at_where_a_grammar_masks():
    batch, requests = holding()
    for _ in range(3):
        assert step(batch, requests, grammar_rows=[0]) == [True, True]
        generate(requests)

    assert batch.looked == 3


def test_rows_whose_edits_hold_are_looked_at_where_one_of_them_asks_for_raw_logprobs():
    batch, requests = ServedBatch(), [played(50, Finite), played(50, Finite)]
    (row,) = rows_of([requests[1].custom_params])
    row.host.raw = RawLogprobs()
    for looked in range(1, 5):
        assert step(batch, requests) == [True, True]
        assert batch.looked == looked
        generate(requests)


@pytest.mark.slow  # ends a request, which imports SGLang
def test_a_row_that_sglang_masks_too_ends_if_both_leave_no_token_while_edits_hold():
    batch, requests = ServedBatch(), [played(50, Finite), played(50, Finite)]
    requests[0].row.host.restricted = True
    for _ in range(3):
        assert step(batch, requests) == [True, True]
        generate(requests)
    logits = torch.zeros(2, VOCAB)
    logits[0, 1:] = -torch.inf  # min_new_tokens, or a logit_bias
    batch.run(logits, [request.custom_params for request in requests])

    assert logits[:, 0].tolist() == [0, -torch.inf]
    assert requests[0].error is not None
    assert requests[1].error is None


class Shuts(Finite):
    """Leaves no token."""

    def edit(self, request, edits):
        edits.ban(range(VOCAB))
        edits.hold_until(request.params.period)


@pytest.mark.slow  # ends a request, which imports SGLang
def test_edits_that_hold_go_with_a_request_that_they_end():
    batch, requests = ServedBatch(), [played(50, Shuts), played(50, Finite)]
    for _ in range(5):
        assert step(batch, requests) == [False, True]
        generate(requests)

    assert requests[0].error is not None
    assert requests[1].error is None


def test_a_sleeping_batch_keeps_no_row_of_a_request_that_is_gone():
    batch, requests = asleep(1)
    (row,) = rows_of([requests[0].custom_params])
    assert row is not None

    kept = [name for name in vars(batch) if row in _held(getattr(batch, name))]

    assert not kept


def _held(value):
    return value if isinstance(value, list | tuple) else [value]


JOIN, LEAVE, RETRACT, SWAP = range(4)


#: By processor, whether token 0 is banned at a position.
SHUT = {
    Every: lambda position, period: position % period == 0,
    Finite: lambda position, period: position < period,
}


@examples(60)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([*SHUT])), min_size=1, max_size=3),
    st.lists(
        st.tuples(
            st.sampled_from([None] * 8 + [JOIN, LEAVE, RETRACT, SWAP]),
            st.integers(1, 9),
            st.sampled_from([1, 1, 2, 4]),
        ),
        max_size=40,
    ),
)
def test_every_row_acts_at_its_positions_whatever_becomes_of_the_batch(rows, steps):
    batch, requests = ServedBatch(), [played(*row) for row in rows]
    for event, number, width in steps:
        if event == JOIN:
            requests = [*requests, played(number, rows[0][1])]
        elif event == LEAVE and len(requests) > 1:
            requests = requests[1:]
        elif event == SWAP:
            requests = [*requests[1:], requests[0]]
        elif event == RETRACT:
            requests[0].retract()
        shut = step(batch, requests, width)
        for request, is_shut in zip(requests, shut, strict=True):
            period = request.row.turns[0].request.params.period
            says = SHUT[request.row.turns[0].processor.kind]
            assert is_shut == says(len(request.source.output_ids), period)
        generate(requests, min(number, width))


def test_a_history_that_is_replaced_is_found_when_the_batch_wakes():
    batch, requests = asleep(1, period=5)
    requests[0].source.output_ids = array("q", [3, 3, 3, 3, 3])
    requests[0].source.commit()

    for _ in range(3):
        step(batch, requests)

    assert [*requests[0].row.tokens] == [3, 3, 3, 3, 3]
