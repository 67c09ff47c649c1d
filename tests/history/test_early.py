"""The edits of the first token are asked for when the request arrives."""

from time import sleep

import pytest
import torch

from sglang_lp import LogitProcessor
from sglang_lp._engine.arrivals import Arrivals
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.rows import attach_row, rows_of
from sglang_lp.builtins import (
    BadWordsLogitProcessor,
    ChainLogitProcessor,
    DisallowedTokensLogitsProcessor,
)
from sglang_lp.processor import prepare
from sglang_lp.request import History
from sglang_lp.served import ServedModel
from sglang_lp.server.host import StockHost
from sglang_lp.testing import FakeRequest

VOCAB = 16


class Recorder(LogitProcessor):
    """Bans a token for good once, and another one at each step."""

    early = True
    log: list

    def start(self, request):
        self.log.append(("start", [*request.prompt_ids]))
        return []

    def advance(self, request, token_ids):
        request.state.extend(token_ids)

    def edit(self, request, edits):
        self.log.append(("edit", request.position))
        if "declared" not in request.state:
            request.state.append("declared")
            edits.always().ban([3])
        edits.ban([5 + request.position])


class Blind(Recorder):
    needs = History.NONE


class Reads(Recorder):
    """Looks at the logits, which are not there before the step."""

    early = True

    def edit(self, request, edits):
        super().edit(request, edits)
        edits.force(int(request.logits.argmax()))


class Fails(Recorder):
    early = True

    def edit(self, request, edits):
        super().edit(request, edits)
        edits.ban([VOCAB])


def arrived(cls=Recorder, *, vocab_size=VOCAB, output=(), arrivals=None):
    """Return a request that has arrived, its params and what its processor was asked."""
    log = []
    kind = type(cls.__name__, (cls,), {"log": log})
    request = FakeRequest([1, 2], output, served=True)
    params = request.custom_params({})
    host = StockHost(request, may_lag=False)
    row = attach_row(params, kind(), kind.parse_params({}), host)
    (arrivals or Arrivals()).start(row, vocab_size)
    return request, params, log


def banned(params, batch=None):
    logits = torch.zeros(1, VOCAB)
    (batch or Batch()).step(logits, rows_of([params]), [params])
    return logits[0].isneginf().nonzero().flatten().tolist()


@pytest.mark.parametrize("cls", [Recorder, Blind])
def test_the_first_step_does_not_ask_again(cls):
    _, params, log = arrived(cls)
    assert log == [("start", [1, 2]), ("edit", 0)]

    assert banned(params) == [3, 5]
    assert log == [("start", [1, 2]), ("edit", 0)]


def test_later_steps_ask_as_ever_and_what_holds_goes_on():
    request, params, log = arrived()
    batch = Batch()
    banned(params, batch)
    request.append(7)

    assert banned(params, batch) == [3, 6]
    assert log[1:] == [("edit", 0), ("edit", 1)]


def test_a_processor_that_reads_the_logits_is_asked_at_the_step_with_a_new_state():
    _, params, log = arrived(Reads)

    assert len(banned(params)) == VOCAB - 1
    assert log == [("start", [1, 2]), ("edit", 0)] * 2


def test_what_fails_early_ends_the_request_at_its_step():
    request, params, _ = arrived(Fails)

    assert request.to_finish is None
    banned(params)
    assert "Fails failed at token 0: token id 16 is outside" in request.to_finish.message


def test_a_request_whose_first_token_came_from_elsewhere_begins_anew():
    request, params, log = arrived()
    request.append(7)

    assert banned(params) == [3, 6]
    assert log == [("start", [1, 2]), ("edit", 0), ("start", [1, 2]), ("edit", 1)]


def test_a_prompt_that_is_replaced_before_the_first_step_is_read_anew():
    request, params, log = arrived()
    request.origin_input_ids = [8, 9]

    assert banned(params) == [3, 5]
    assert log == [("start", [1, 2]), ("edit", 0), ("start", [8, 9]), ("edit", 0)]


def test_rows_of_another_width_are_asked_anew():
    _, params, log = arrived(vocab_size=VOCAB + 4)

    assert banned(params) == [3, 5]
    assert log == [("start", [1, 2]), ("edit", 0)] * 2


def test_a_retraction_before_the_first_step_changes_nothing():
    _, params, log = arrived()
    rows_of([params])[0].rewind()

    assert banned(params) == [3, 5]
    assert log == [("start", [1, 2]), ("edit", 0)]


def test_a_class_that_overrides_edit_says_itself_that_it_can_be_asked_early():
    class Own(DisallowedTokensLogitsProcessor):
        def edit(self, request, edits):
            super().edit(request, edits)

    class Inherits(DisallowedTokensLogitsProcessor):
        pass

    assert DisallowedTokensLogitsProcessor.early
    assert Inherits.early
    assert not Own.early


def test_a_chain_is_asked_early_if_all_of_its_links_can_be():
    chain = {"chain": ["BadWordsLogitProcessor"], "0.token_ids": [1], "0.lengths": [1]}
    served, _ = prepare(ChainLogitProcessor(), chain, ServedModel(vocab_size=VOCAB))
    assert served.early

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BadWordsLogitProcessor, "early", False)
        served, _ = prepare(ChainLogitProcessor(), chain, ServedModel(vocab_size=VOCAB))
    assert not served.early


def test_of_many_rows_that_arrive_at_once_a_few_are_asked_before_their_step():
    arrivals = Arrivals()
    asked = [log for _, _, log in (arrived(arrivals=arrivals) for _ in range(40))]

    assert [("edit", 0) in log for log in asked] == [True] * 16 + [False] * 24


class Slow(Recorder):
    def start(self, request):
        sleep(0.015)
        return super().start(request)


def test_where_starting_takes_long_the_rest_starts_at_its_first_step():
    arrivals = Arrivals()
    rows = [arrived(cls, arrivals=arrivals) for cls in (Slow, Recorder, Slow)]
    assert [len(log) for _, _, log in rows] == [2, 0, 0]

    for _, params, log in rows:
        assert banned(params) == [3, 5]
        assert log == [("start", [1, 2]), ("edit", 0)]


def test_after_a_step_rows_are_started_again():
    arrivals = Arrivals()
    _, params, _ = arrived(Slow, arrivals=arrivals)
    assert arrived(arrivals=arrivals)[2] == []

    banned(params)
    assert arrived(arrivals=arrivals)[2] == [("start", [1, 2]), ("edit", 0)]


def test_what_fails_to_start_late_ends_its_own_request_alone():
    class Broken(Recorder):
        def start(self, request):
            raise RuntimeError("no")

    arrivals = Arrivals()
    _, first, _ = arrived(Slow, arrivals=arrivals)
    broken, second, _ = arrived(Broken, arrivals=arrivals)
    logits = torch.zeros(2, VOCAB)
    Batch().step(logits, rows_of([first, second]), [first, second])

    assert logits[0].isneginf().nonzero().flatten().tolist() == [3, 5]
    assert "Broken" in broken.to_finish.message


def test_nothing_is_asked_where_the_vocabulary_is_unknown():
    _, _, log = arrived(vocab_size=None)
    assert log == [("start", [1, 2])]
