"""Processors under a simulated scheduler, against oracles that read the whole true history.

A schedule is a list of requests and a list of steps. A step puts any of the requests into one
batch, as a decode, as the last chunk of a prefill or as a middle chunk. Under lag a token enters
the history only after the next token was sampled, as with SGLang's overlap scheduling.
"""

from array import array
from itertools import cycle, islice
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.builtins import BadWordsLogitProcessor, ChainLogitProcessor
from sglang_lp.links import prepare
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.sglang_host import SglangHost
from support.examples import examples
from support.fakes.requests import Req
from support.fakes.served_batch import ServedBatch
from support.processors.kinds import (
    BUDGETS,
    END,
    INF,
    KINDS,
    NEW_LINE,
    PAD,
    START,
    VOCAB,
    Kind,
    banned,
    open_for,
    thinking_budget,
)
from support.processors.kinds import expected as expected_of

#: Of the kinds with edits that hold at every step, the tokens that these ban.
HELD = {BadWordsLogitProcessor: {5}, ChainLogitProcessor: {0}}

# Schedules

GO, SKIP, RETRACT, CHUNK, REPLACE, FINISH = range(6)

TOKEN = st.integers(0, VOCAB - 1)
WISH = st.sampled_from([START, END, NEW_LINE, *range(VOCAB)])


class Spec(NamedTuple):
    """A request that is to come: what it is, and what its model would like to say."""

    kind: Kind | None
    prompt: list
    wishes: list
    arrives: int
    already: list
    copies_params: bool


class Step(NamedTuple):
    lag: bool
    instance: int
    rotate: int
    ops: list


def specs(kinds):
    return st.builds(
        Spec,
        kind=st.sampled_from(kinds),
        prompt=st.lists(st.sampled_from([PAD, START, *range(VOCAB)]), min_size=1, max_size=6),
        wishes=st.lists(WISH, min_size=1, max_size=12),
        arrives=st.sampled_from([0, 0, 0, 1, 2, 5, 9]),
        already=st.one_of(st.just([]), st.just([]), st.lists(WISH, max_size=3)),
        copies_params=st.booleans(),
    )


OPS = [*[GO] * 12, SKIP, RETRACT, CHUNK, REPLACE, FINISH]
STEPS = st.lists(
    st.builds(
        Step,
        lag=st.booleans(),
        instance=st.integers(0, 2),
        rotate=st.integers(0, 3),
        ops=st.lists(st.sampled_from(OPS), min_size=3, max_size=3),
    ),
    min_size=4,
    max_size=30,
)


class SimulatedReq(Req):
    """A request of a schedule, and the tokens of it that are sampled and not processed yet."""

    drafts = False

    def __init__(self, spec):
        super().__init__(prompt=spec.prompt, output=spec.already)
        self.spec = spec
        self.kind = spec.kind
        #: All tokens sampled, also the one that is not in output_ids yet.
        self.stream = [*spec.already]
        self.prefilled = bool(spec.already)
        self.chunks = 0
        self.discarded = False
        self.params = {}
        self.trace = []

    def of(self, _req):
        """Return the results of this request in the queue of the server."""
        return self.stream[len(self.output_ids) :]

    def discards(self, _req):
        return self.discarded

    def flush(self):
        """Process the result of the last step."""
        self.output_ids.extend(self.stream[len(self.output_ids) :])

    def retract(self):
        self.flush()
        self.kv.kv_committed_len = 0
        self.prefilled = False
        self.chunks = 0

    def enter(self, op):
        """Take part in a step; tell whether the token that is sampled counts."""
        whole = len(self.origin_input_ids) + len(self.stream)
        self.discarded = False
        if not self.prefilled and op == CHUNK and self.chunks < whole - 1:
            self.flush()
            self.chunks += 1
            self.kv.kv_committed_len = self.chunks
            self.discarded = True
            return False
        if not self.prefilled:
            self.flush()
        self.prefilled = True
        self.kv.kv_committed_len = whole
        return True

    def logits(self):
        """Return the logits of the model: all different, highest for the token it prefers."""
        position = len(self.stream)
        row = [-float((7 * i + 3 * position) % VOCAB) for i in range(VOCAB)]
        row[next(islice(cycle(self.spec.wishes), position, None))] = 10.0
        return row


class Taken(NamedTuple):
    """One sampled token: the history before it, the row before and after, whether it was seen."""

    history: list
    before: list
    after: list
    exact: bool


class Simulator:
    """Plays a schedule. Subclasses are the plugin and the stock server."""

    may_lag: bool

    def __init__(self, awake=False):
        self.live = []
        self.gone = []
        #: Whether every row is made to look at every step.
        self.awake = awake

    def play(self, specs, steps):
        for now, step in enumerate(steps):
            for spec in specs:
                if spec.arrives == now or (now == 0 and spec.arrives >= len(steps)):
                    self.arrive(spec)
            self.step(step)
        return self.gone + self.live

    def arrive(self, spec):
        req = SimulatedReq(spec)
        if spec.kind is not None:
            if spec.copies_params:  # also what the toolkit keeps there for another request
                for other in self.live:
                    if other.kind is spec.kind:
                        req.params |= other.params
            req.params |= {**spec.kind.params, "__req__": req}
            self.register(req)
        self.live.append(req)

    def step(self, step):
        members = self.members(step)
        reqs = [req for req, _ in members]
        lag = step.lag and self.allows_lag(reqs)
        for req in self.live:
            if not lag or req not in reqs:
                req.flush()
        if not reqs:
            return
        counts = [req.enter(op) for req, op in members]
        before = [req.logits() for req in reqs]
        logits = torch.tensor(before)
        if self.awake:
            for row in rows_of([req.params for req in reqs]):
                if row is not None and row.needs is not History.NONE:
                    row.wake = 0
        self.sample(logits, reqs, step)
        for req, counted, old, new in zip(reqs, counts, before, logits.tolist(), strict=True):
            assert req.to_finish is None
            exact = len(req.stream) == len(req.output_ids)
            req.flush()
            if counted:
                req.trace.append(Taken([*req.stream], old, new, exact))
                req.stream.append(max(range(VOCAB), key=new.__getitem__))

    def members(self, step):
        """Apply a step to each request; return the requests in its batch."""
        members = []
        for req, op in zip(list(self.live), cycle(step.ops), strict=False):
            if op == FINISH:
                self.live.remove(req)
                self.gone.append(req)
            elif op == RETRACT:
                req.retract()
            elif op != SKIP:
                if op == REPLACE:
                    req.output_ids = array("q", req.output_ids)
                members.append((req, op))
        return members[step.rotate :] + members[: step.rotate]


class Plugin(Simulator):
    """As on a server with the plugin: one batch, rows made with their requests."""

    def __init__(self, awake=False):
        super().__init__(awake)
        self.batch = ServedBatch()

    def register(self, req):
        processor = req.kind.processor
        served = prepare(processor(), req.kind.params, ServedModel(vocab_size=VOCAB))
        row = attach_row(req.params, served, SglangHost(req, req))
        if len(self.live) % 4:  # the others start in their first steps
            arrivals = Arrivals()
            arrivals.start(row, VOCAB)
            arrivals.read([row], VOCAB)

    def allows_lag(self, _reqs):
        return True

    def sample(self, logits, reqs, _step):
        params = [req.params for req in reqs]
        if self.awake:
            self.batch.step(logits, rows_of(params), params)
        else:
            self.batch.run(logits, params)


class Stock(Simulator):
    """As on a stock server: each class is called by itself, on a copy, on some instance."""

    def __init__(self, awake=False):
        super().__init__(awake)
        self.instances = {}

    def register(self, req):
        pass

    def allows_lag(self, _reqs):
        return True

    def sample(self, logits, reqs, step):
        for processor in {req.kind.processor for req in reqs if req.kind}:
            key = processor, step.instance
            instance = self.instances.setdefault(key, processor())
            rows = [i for i, req in enumerate(reqs) if req.kind and req.kind.processor is processor]
            logits[rows] = instance(logits[rows], [reqs[i].params for i in rows])


def expected(req, taken):
    return expected_of(req.kind, taken.before, req.spec.prompt, taken.history)


@examples(12)
@given(st.lists(specs(KINDS), min_size=1, max_size=5), STEPS)
def test_with_exact_history_every_edit_is_the_oracles(specs, steps):
    for req in Plugin().play(specs, steps):
        for taken in req.trace:
            assert taken.after == expected(req, taken)


@examples(7)
@given(st.lists(specs(KINDS), min_size=1, max_size=5), STEPS)
def test_without_the_plugin_an_edit_is_the_oracles_or_is_left_out(specs, steps):
    for req in Stock().play(specs, steps):
        for taken in req.trace:
            if req.kind is None:
                assert taken.after == taken.before
            elif req.kind.oracle is thinking_budget:
                continue  # below
            elif req.kind.processor in HELD and not taken.exact:
                held = banned(taken.before, HELD[req.kind.processor])
                assert taken.after in (taken.before, held)
            elif req.kind.processor.needs is History.TOKENS and not taken.exact:
                assert taken.after == taken.before
            else:
                assert taken.after == expected(req, taken)


@examples(20)
@given(st.lists(specs(BUDGETS), min_size=1, max_size=3), STEPS)
def test_without_the_plugin_a_budget_holds_and_closes_a_block_once(specs, steps):
    for req in Stock().play(specs, steps):
        check_budget(req)


def check_budget(req):
    tokens = req.kind.params["thinking_budget"]
    closing = []
    for taken in req.trace:
        length = open_for(req.spec.prompt, taken.history)
        is_forced = sum(x > -INF for x in taken.after) == 1
        if not is_forced:
            closing = []
            assert length is None or length < tokens, "the budget was overshot"
            edited = {i for i in range(VOCAB) if taken.after[i] != taken.before[i]}
            assert edited <= {START, END}, "an unforced step was edited"
            assert all(taken.after[i] == -INF for i in edited)
            continue
        assert length is not None, "forced although the model had closed the block itself"
        # With a budget of one the start of a block is seen when its budget is spent.
        reopened = tokens == 1 and taken.history[-1:] == [START]
        assert length >= tokens or reopened, "forced before the budget was spent"
        closing.append(max(range(VOCAB), key=taken.after.__getitem__))
        assert closing in ([NEW_LINE], [NEW_LINE, END], [END]), "a token was forced twice"
        if closing == [END] and "new_line_token_id" in req.kind.params:
            assert taken.history[-1:] == [NEW_LINE], "closed without a new line"


@pytest.mark.parametrize("simulator", [Plugin, Stock])
@examples(5)
@given(specs=st.lists(specs(KINDS), min_size=1, max_size=4), steps=STEPS)
def test_sleeping_changes_nothing(simulator, specs, steps):
    asleep = simulator().play(specs, steps)
    awake = simulator(awake=True).play(specs, steps)

    assert [req.trace for req in asleep] == [req.trace for req in awake]
