"""Rows are asked early: for the edits of the first token, when the request arrives."""

import signal

import pytest
import torch

from sglang_lp import LogitProcessor
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp._engine.history.host import Host
from sglang_lp._engine.history.row import Row
from sglang_lp.builtins import (
    BadWordsLogitProcessor,
    ChainLogitProcessor,
    DisallowedTokensLogitsProcessor,
)
from sglang_lp.links import Serving, prepare
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest

VOCAB = 16


class Recorder(LogitProcessor):
    """Bans one token for good, and a second token at each step."""

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


def arrived(
    cls=Recorder, *, vocab_size=VOCAB, output=(), arrivals=None, prompt=(1, 2), parsed=None
):
    """Return a request that has arrived, its params and what its processor was asked."""
    log = []
    kind = type(cls.__name__, (cls,), {"log": log})
    request = FakeRequest(prompt, output, served=True)
    params = request.custom_params({})
    host = StockHost(request, may_lag=False)
    row = attach_row(params, [Serving(kind(), parsed or kind.parse_params({}))], host)
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
    pytest.importorskip("sglang")
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
    servings = prepare(ChainLogitProcessor(), chain, ServedModel(vocab_size=VOCAB))
    assert Row(servings, Host(None)).flags.early

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BadWordsLogitProcessor, "early", False)
        servings = prepare(ChainLogitProcessor(), chain, ServedModel(vocab_size=VOCAB))
        assert not Row(servings, Host(None)).flags.early


def test_of_many_rows_that_arrive_at_once_a_few_are_asked_before_their_step():
    arrivals = Arrivals()
    asked = [log for _, _, log in (arrived(arrivals=arrivals) for _ in range(40))]

    assert [("edit", 0) in log for log in asked] == [True] * 16 + [False] * 24


class Reader(Recorder):
    reads_prompt = True


def started(*rows):
    return [bool(log) for _, _, log in rows]


def long_prompt(last=0, tokens=100_000):
    return [*[7] * (tokens - 1), last]


def read(arrivals, rows, vocab_size=VOCAB):
    """Read prompts between two steps; return who waits."""
    return arrivals.read(rows_of([params for _, params, _ in rows]), vocab_size)


def test_who_reads_its_prompt_waits_until_it_could_begin():
    arrivals = Arrivals()
    row = arrived(Reader, arrivals=arrivals)
    assert (started(row), arrivals.wait) == ([False], True)

    assert read(arrivals, [row]) == set()
    assert (started(row), arrivals.wait) == ([True], False)
    assert row[2] == [("start", [1, 2]), ("edit", 0)], "asked for its first edits, too"
    assert banned(row[1]) == [3, 5]
    assert len(row[2]) == 2, "started once, asked once"


def test_of_many_long_prompts_some_are_read_between_two_steps_and_the_others_wait():
    arrivals = Arrivals()
    rows = [
        arrived(Reader, arrivals=arrivals, prompt=long_prompt(last, tokens))
        for last, tokens in ((1, 142_000), (2, 9_000), (3, 5_000), (4, 144_000))
    ]
    assert read(arrivals, rows) == {1, 3}
    assert started(*rows) == [True, False, True, False]

    assert read(arrivals, [rows[1], rows[3]]) == {1}
    assert read(arrivals, [rows[3]]) == set()
    assert all(started(*rows))
    for _, params, log in rows:
        assert banned(params) == [3, 5]
        assert len(log) == 2, "started once, asked once"


def test_a_prompt_longer_than_all_that_is_read_at_once_is_read_if_it_is_the_first():
    arrivals = Arrivals()
    prompts = (long_prompt(tokens=300_000), [1])
    rows = [arrived(Reader, arrivals=arrivals, prompt=prompt) for prompt in prompts]
    assert read(arrivals, rows) == {1}
    assert read(arrivals, rows) == set()


def test_copies_count_less_because_they_are_compared_and_not_read():
    arrivals, parsed = Arrivals(), Reader.parse_params({})
    rows = [
        arrived(Reader, arrivals=arrivals, prompt=long_prompt(), parsed=parsed) for _ in range(60)
    ]
    other = arrived(Reader, arrivals=arrivals, prompt=long_prompt(1), parsed=parsed)
    waiting = read(arrivals, [*rows, other])

    assert 30 < len(waiting) < 50
    assert 60 in waiting


def test_a_prompt_that_only_ends_like_another_is_no_copy():
    arrivals, parsed = Arrivals(), Reader.parse_params({})
    rows = [
        arrived(Reader, arrivals=arrivals, prompt=[last, *long_prompt()], parsed=parsed)
        for last in range(3)
    ]
    assert read(arrivals, rows) == {1, 2}


def test_who_does_not_read_the_prompt_is_started_at_once_however_long_it_is():
    arrivals = Arrivals()
    rows = [arrived(arrivals=arrivals, prompt=long_prompt(last)) for last in range(5)]
    assert all(started(*rows))
    assert not arrivals.wait


def test_of_many_rows_that_are_read_at_once_a_few_are_asked_before_their_step():
    arrivals = Arrivals()
    rows = [arrived(Reader, arrivals=arrivals) for _ in range(40)]
    assert read(arrivals, rows) == set()
    assert [("edit", 0) in log for _, _, log in rows] == [True] * 16 + [False] * 24


def test_a_request_that_goes_on_is_not_asked_for_its_first_edits():
    arrivals = Arrivals()
    row = arrived(Reader, arrivals=arrivals, output=[9])
    read(arrivals, [row])
    assert row[2] == [("start", [1, 2])]


def test_a_prompt_that_was_replaced_while_it_waited_is_read_as_it_is_now():
    arrivals = Arrivals()
    row = arrived(Reader, arrivals=arrivals)
    row[0].origin_input_ids = [4, 5]
    read(arrivals, [row])
    assert row[2][0] == ("start", [4, 5])


def test_who_begins_unread_starts_in_its_first_step():
    row = arrived(Reader)
    assert banned(row[1]) == [3, 5]
    assert row[2] == [("start", [1, 2]), ("edit", 0)]


def test_what_fails_to_start_ends_its_own_request_alone_and_is_not_tried_at_every_step():
    pytest.importorskip("sglang")
    starts = []

    class Broken(Reader):
        def start(self, request):
            starts.append(1)
            raise SystemExit("no")

    arrivals = Arrivals()
    good, broken = arrived(Reader, arrivals=arrivals), arrived(Broken, arrivals=arrivals)
    assert read(arrivals, [good, broken]) == set()
    read(arrivals, [broken])
    assert len(starts) == 1
    first, second = good[1], broken[1]
    logits = torch.zeros(2, VOCAB)
    Batch().step(logits, rows_of([first, second]), [first, second])

    assert logits[0].isneginf().nonzero().flatten().tolist() == [3, 5]
    assert "Broken" in broken[0].to_finish.message


@pytest.mark.usefixtures("default_signals")
def test_a_signal_goes_on_its_way():
    class Broken(Reader):
        def start(self, request):
            signal.raise_signal(signal.SIGINT)

    arrivals = Arrivals()
    row = arrived(Broken, arrivals=arrivals)
    with pytest.raises(KeyboardInterrupt):
        read(arrivals, [row])


def test_a_chain_reads_the_prompt_if_one_of_its_links_does():
    for link, reads in (("DisallowedTokensLogitsProcessor", False), ("DRYLogitProcessor", True)):
        given = {"chain": [link]} | ({"0.token_ids": [1]} if not reads else {})
        ((serving, _, *_),) = prepare(ChainLogitProcessor(), given, ServedModel(vocab_size=VOCAB))
        assert serving.reads_prompt is reads


def test_nothing_is_asked_where_the_vocabulary_is_unknown():
    _, _, log = arrived(vocab_size=None)
    assert log == [("start", [1, 2])]
