"""Requests stay in SGLang's waiting queue until their prompts are read."""

from array import array
from types import SimpleNamespace

import pytest

from sglang_lp import LogitProcessor
from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.links import Serving
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler import waiting_queue
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.server.scheduler.waiting_queue import WaitingQueue
from sglang_lp.testing import FakeRequest
from sglang_lp.trust import Policy

#: Two of these are more than is read between two steps.
LONG = array("q", range(131_072))


class Reads(LogitProcessor):
    reads_prompt = True
    early = True
    read = ()

    def start(self, request):
        type(self).read += (request.prompt_ids[0],)

    def edit(self, request, edits):
        edits.ban([1])


class Scheduler:
    """As much of SGLang's scheduler as forms a batch: of all, or of the first few."""

    running_batch = SimpleNamespace(is_empty=lambda: False)
    chunked_req = None

    def __init__(self, queue, most=100, *, disable_radix_cache=False):
        self.waiting_queue, self.most = queue, most
        self.server_args = SimpleNamespace(disable_radix_cache=disable_radix_cache)

    def form(self, *args):
        """Take the first out of the queue, which becomes another list, as SGLang does it."""
        batch, self.waiting_queue = (
            self.waiting_queue[: self.most],
            self.waiting_queue[self.most :],
        )
        return [*map(name, batch)], *args


def name(req):
    return req.origin_input_ids[0]


@pytest.fixture(autouse=True)
def unread():
    Reads.read = ()


@pytest.fixture
def guard():
    made = Guard(Policy.default())
    made.server.vocab_size = 10
    return made


def arriving(arrivals, first, *, processor=Reads, prompt=LONG, resumed=0):
    req = FakeRequest([first, *prompt], served=True)
    req.sampling_params = SimpleNamespace(custom_params=None)
    if processor is not None:
        params = req.sampling_params.custom_params = req.custom_params({})
        host = StockHost(req, may_lag=False)
        host.resumed = resumed
        arrivals.start(attach_row(params, [Serving(processor(), None)], host), 10)
    return req


def batches(hook, scheduler, count):
    return [hook(Scheduler.form, scheduler)[0] for _ in range(count)]


def test_long_prompts_that_come_together_begin_one_after_the_other(guard):
    arrivals = Arrivals()
    scheduler = Scheduler([arriving(arrivals, first) for first in range(3)])
    hook = WaitingQueue(guard, arrivals).hold

    assert hook(Scheduler.form, scheduler, "what SGLang passes") == ([0], "what SGLang passes")
    assert [*map(name, scheduler.waiting_queue)] == [1, 2]
    assert batches(hook, scheduler, 3) == [[1], [2], []]
    assert Reads.read == (0, 1, 2)


class ReadsLittle(Reads):
    """Reads the end of a prompt."""

    @classmethod
    def read_of_prompt(cls, params, length):
        return min(length, 1000)


def test_prompts_of_which_little_is_read_begin_together(guard):
    arrivals = Arrivals()
    waiting = [arriving(arrivals, first, processor=ReadsLittle) for first in range(100)]
    hook = WaitingQueue(guard, arrivals).hold

    assert batches(hook, Scheduler(waiting), 1) == [[*range(100)]]


class TakesIn(LogitProcessor):
    early = True
    times = ()

    def advance(self, request, token_ids):
        type(self).times += (len(token_ids),)

    def edit(self, request, edits):
        edits.ban([1])


@pytest.mark.parametrize("busy", [False, True, "another pipeline batch"])
def test_an_answer_is_resumed_piece_by_piece_where_a_batch_waits(guard, busy):
    TakesIn.times = ()
    arrivals = Arrivals()
    queue = [
        arriving(arrivals, 1, processor=TakesIn, prompt=LONG[:4000], resumed=3000),
        arriving(arrivals, 2, processor=TakesIn, prompt=LONG[:10], resumed=10),
    ]
    scheduler = Scheduler(queue)
    empty, full = (SimpleNamespace(is_empty=lambda is_empty=one: is_empty) for one in (True, False))
    scheduler.running_batch = full if busy is True else empty
    if isinstance(busy, str):
        scheduler.running_mbs = [empty, full]
    formed = batches(WaitingQueue(guard, arrivals).hold, scheduler, 4)

    assert formed == ([[], [], [1, 2], []] if busy else [[1], [2], [], []])
    assert sum(TakesIn.times) == 3010
    assert max(TakesIn.times) == (1152 if busy else 3000)
    for req in queue:
        (row,) = rows_of([req.sampling_params.custom_params])
        assert row.accept_tokens()
        assert (row.position, len(row.tokens)) == (row.resumed, row.resumed)
    assert sum(TakesIn.times) == 3010


def test_a_request_that_sglang_ends_before_its_first_step_begins_at_once_unread(guard):
    """SGLang makes its prompt a single token, which has none of the tokens to resume."""
    TakesIn.times = ()
    arrivals = Arrivals()
    req = arriving(arrivals, 1, processor=TakesIn, prompt=LONG[:4000], resumed=3000)
    req.origin_input_ids, req.to_finish = array("q", [0]), "its grammar cannot be compiled"

    assert batches(WaitingQueue(guard, arrivals).hold, Scheduler([req]), 1) == [[0]]
    assert not TakesIn.times
    assert rows_of([req.sampling_params.custom_params]) == [None]


def test_a_step_that_comes_before_an_answer_is_resumed_takes_it_in(guard):
    TakesIn.times = ()
    arrivals = Arrivals()
    req = arriving(arrivals, 1, processor=TakesIn, prompt=LONG[:4000], resumed=3000)
    assert batches(WaitingQueue(guard, arrivals).hold, Scheduler([req]), 1) == [[]]

    (row,) = rows_of([req.sampling_params.custom_params])
    assert row.accept_tokens()
    assert [*row.tokens] == [*LONG[1000:4000]]
    assert [*row.prompt_ids] == [1, *LONG[:1000]]


def test_who_has_nothing_to_read_passes_those_that_wait(guard):
    arrivals = Arrivals()
    queue = [arriving(arrivals, first) for first in (1, 2)]
    queue += [
        arriving(arrivals, 3, processor=None),
        arriving(arrivals, 4, processor=None),
        SimpleNamespace(origin_input_ids=[5], sampling_params=None),  # of an embedding
    ]
    scheduler = Scheduler(queue)

    assert batches(WaitingQueue(guard, arrivals).hold, scheduler, 2) == [[1, 3, 4, 5], [2]]


def test_those_that_wait_keep_their_places_in_the_queue(guard):
    arrivals = Arrivals()
    queue = [arriving(arrivals, first) for first in (1, 2)]
    queue += [arriving(arrivals, first, processor=None) for first in (3, 4)]
    scheduler = Scheduler(queue, most=1)
    hook = WaitingQueue(guard, arrivals).hold

    assert batches(hook, scheduler, 1) == [[1]]
    assert [*map(name, scheduler.waiting_queue)] == [2, 3, 4]
    assert batches(hook, scheduler, 3) == [[2], [3], [4]]


def test_who_was_preempted_meanwhile_stands_at_the_end(guard):
    arrivals = Arrivals()
    scheduler = Scheduler([arriving(arrivals, first) for first in (1, 2)])
    preempted = arriving(arrivals, 9, processor=None)

    def form(scheduler):
        formed = scheduler.form()
        scheduler.waiting_queue.append(preempted)
        return formed

    WaitingQueue(guard, arrivals).hold(form, scheduler)
    assert [*map(name, scheduler.waiting_queue)] == [2, 9]


def test_nobody_is_lost_if_sglang_fails(guard):
    arrivals = Arrivals()
    scheduler = Scheduler([arriving(arrivals, first) for first in (1, 2)])

    def fail(_scheduler):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        WaitingQueue(guard, arrivals).hold(fail, scheduler)
    assert [*map(name, scheduler.waiting_queue)] == [1, 2]


def test_a_queue_in_which_nobody_waits_is_not_gone_through(guard):
    arrivals = Arrivals()
    queue = [arriving(arrivals, 1, prompt=[2])]
    hook = WaitingQueue(guard, arrivals).hold
    assert batches(hook, Scheduler(queue), 1) == [[1]]

    scheduler = Scheduler(["not looked at"])
    assert hook(lambda scheduler: scheduler.waiting_queue, scheduler) is scheduler.waiting_queue


def test_on_a_decode_server_first_tokens_are_asked_for_when_a_prompt_is_read(guard, monkeypatch):
    arrivals, resumed = Arrivals(), []
    scheduler = Scheduler([arriving(arrivals, first) for first in (1, 2)])
    monkeypatch.setattr(waiting_queue, "resume", lambda req, _vocab_size: resumed.append(name(req)))
    hook = WaitingQueue(guard, arrivals).hold_prebuilt

    assert batches(hook, scheduler, 1) == [[1]]
    assert resumed == [1]
    assert batches(hook, scheduler, 1) == [[2]]
    assert resumed == [1, 2]


def of_kind(first, embeds):
    params = SimpleNamespace(custom_params=None)
    given = [[0.5]] if embeds else None
    return SimpleNamespace(origin_input_ids=[first], sampling_params=params, input_embeds=given)


# Each batch of both kinds ended the scheduler: it had fewer embeddings than tokens.
@pytest.mark.parametrize("hook", ["hold", "hold_prebuilt"])
def test_requests_with_embeddings_begin_in_batches_of_their_own(guard, monkeypatch, hook):
    monkeypatch.setattr(waiting_queue, "resume", lambda *_: None)
    queue = [of_kind(first, first % 3 == 0) for first in range(6)]
    scheduler = Scheduler(queue, disable_radix_cache=True)
    hold = getattr(WaitingQueue(guard, Arrivals()), hook)
    assert batches(hold, scheduler, 3) == [[0, 3], [1, 2, 4, 5], []]

    scheduler = Scheduler(queue[:2], disable_radix_cache=True)
    scheduler.chunked_req = of_kind(9, embeds=False)  # it continues in the batch
    assert batches(hold, scheduler, 1) == [[1]]


class Compiling(Scheduler):
    """One that also takes those whose grammars are compiled, as SGLang does in the same step."""

    def __init__(self, queue, compiled, hook, **options):
        super().__init__(queue, **options)
        self.compiled, self.hook = compiled, hook

    def ready(self):
        compiled, self.compiled = self.compiled, []
        return compiled

    def _add_request_to_queue(self, req):
        self.waiting_queue.append(req)

    def form(self, *args):
        for req in self.hook(Compiling.ready, self):
            self._add_request_to_queue(req)
        return super().form(*args)


def test_whose_grammar_is_compiled_waits_for_its_prompt_to_be_read_too(guard):
    arrivals = Arrivals()
    queue = WaitingQueue(guard, arrivals)
    hook, compiled = queue.hold, queue.hold_compiled
    queue = [arriving(arrivals, first) for first in (1, 2)]
    coming = [arriving(arrivals, 3), arriving(arrivals, 4, processor=None), arriving(arrivals, 5)]
    scheduler = Compiling(queue, coming, compiled)

    formed = [hook(Compiling.form, scheduler)[0] for _ in range(5)]
    assert formed == [[1, 4], [2], [3], [5], []]


def test_where_no_batch_is_formed_compiled_requests_go_on_as_ever(guard):
    arrivals = Arrivals()
    req = arriving(arrivals, 1)
    assert WaitingQueue(guard, arrivals).hold_compiled(lambda _: [req], "manager") == [req]


def test_where_prompts_cannot_be_read_between_steps_nobody_waits(caplog):
    class Broken:
        wait = True

        def read(self, _rows, _vocab_size, *, alone):
            raise RuntimeError("broken")

    scheduler = Scheduler([])

    assert WaitingQueue(guard, Broken())._read(scheduler, 100) == set()
    assert "prompts are read in the steps of their requests" in caplog.text


@pytest.mark.parametrize("embeds", [False, True])
def test_who_is_compiled_while_a_batch_of_the_other_kind_is_formed_joins_the_queue(guard, embeds):
    made = WaitingQueue(guard, Arrivals())
    queue, compiled = [of_kind(1, embeds)], [of_kind(2, not embeds), of_kind(3, embeds)]
    scheduler = Compiling(queue, compiled, made.hold_compiled, disable_radix_cache=True)

    assert [made.hold(Compiling.form, scheduler)[0] for _ in range(2)] == [[1, 3], [2]]
