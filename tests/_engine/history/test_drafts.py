"""Processors at every node of drafts, under a simulated scheduler, against the oracles.

Each step drafts a tree of tokens for every request, lets the processors edit all nodes, accepts a
path, and may leave the accepted tokens pending: then they are not in ``output_ids`` when the next
step begins. Requests are retracted in between, which drops what is pending.
"""

import random
from array import array
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp._engine.history.host import Host
from sglang_lp.edits import End
from sglang_lp.errors import ProcessorFault
from sglang_lp.links import prepare
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ServedModel
from support.examples import examples
from support.fakes.served_batch import ServedBatch
from support.processors.kinds import INF, KINDS, PAD, START, VOCAB, expected


class Simulated(Host):
    """Returns the history that the simulator shows, and records ends."""

    __slots__ = ("ends", "finishes", "fresh", "output_ids", "prompt_ids")

    def __init__(self, prompt):
        self.prompt_ids, self.output_ids, self.fresh = array("q", prompt), array("q"), []
        super().__init__(
            SimpleNamespace(origin_input_ids=self.prompt_ids, output_ids=self.output_ids)
        )
        self.ends, self.finishes = [], []

    @property
    def history(self):
        return [*self.output_ids, *self.fresh]

    def look(self, *, tokens):
        pending = tuple(self.fresh)
        return self.prompt_ids, self.output_ids, pending, len(self.history), True

    def end(self, error):
        self.ends.append((len(self.history), (), error))

    def end_at(self, position, drafted, error):
        self.ends.append((position, tuple(drafted), error))

    def finish_at(self, position, drafted, end):
        self.finishes.append((position, tuple(drafted), end))


class Request:
    def __init__(self, kind, prompt, *, limit=1 << 62):
        self.kind, self.host = kind, Simulated(prompt)
        self.host.limit = limit
        self.params = {"__req__": self.host.request}
        if kind is not None:
            served = prepare(kind.processor(), kind.params, ServedModel(vocab_size=VOCAB))
            row = attach_row(self.params, served, self.host)
            arrivals = Arrivals()
            arrivals.start(row, VOCAB)
            arrivals.read([row], VOCAB)


def tree(rng, width, chain):
    """Return the parent of each node, first children and next siblings."""
    parents = [-1, *((node - 1) if chain else rng.randrange(node) for node in range(1, width))]
    first, sibling = [-1] * width, [-1] * width
    for node in range(width - 1, 0, -1):
        sibling[node], first[parents[node]] = first[parents[node]], node
    return parents, first, sibling


def path_to(node, parents, token_ids):
    path = []
    while node:
        path.append(token_ids[node])
        node = parents[node]
    return path[::-1]


def verify(batch, requests, rng, width, *, chain=False):
    """Play a verify step; return for each request its path of each node, and the edited rows."""
    trees = [tree(rng, width, chain) for _ in requests]
    token_ids = []
    for request, (_parents, first, sibling) in zip(requests, trees, strict=True):
        newest = request.host.history[-1] if request.host.history else request.host.prompt_ids[-1]
        ids = [newest, *(rng.randrange(VOCAB) for _ in range(width - 1))]
        for node in range(width):  # children of one parent are different tokens
            child, seen = first[node], set()
            while child >= 0:
                while ids[child] in seen:
                    ids[child] = (ids[child] + 1) % VOCAB
                seen.add(ids[child])
                child = sibling[child]
        token_ids.append(ids)
    asked = []

    def drafts():
        asked.append(1)
        return Drafts(width, token_ids, [one[1] for one in trees], [one[2] for one in trees])

    before = [[rng.uniform(-9, 9) for _ in range(VOCAB)] for _ in range(len(requests) * width)]
    before = torch.tensor(before)
    logits = before.clone()
    params = [request.params for request in requests]
    batch.run(logits, params, drafts=drafts, width=width)
    assert len(asked) <= 1
    paths = [
        [path_to(node, one[0], ids) for node in range(width)]
        for one, ids in zip(trees, token_ids, strict=True)
    ]
    return paths, trees, token_ids, before, logits


def accept(request, node, parents, token_ids, row, *, leave_pending):
    """Commit the path to a node, and the token that its edited logits give."""
    accepted = [*path_to(node, parents, token_ids), int(row.argmax())]
    host = request.host
    host.output_ids.extend(host.fresh)
    host.fresh = accepted
    if not leave_pending:
        host.output_ids.extend(host.fresh)
        host.fresh = []


class Plan(NamedTuple):
    kinds: list
    prompts: list
    seed: int
    widths: list
    chain: bool


plans = st.builds(
    Plan,
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    prompts=st.lists(
        st.lists(st.sampled_from([PAD, START, *range(VOCAB)]), min_size=1, max_size=6),
        min_size=4,
        max_size=4,
    ),
    seed=st.integers(0, 2**32),
    widths=st.lists(st.sampled_from([1, 2, 4, 7]), min_size=2, max_size=12),
    chain=st.booleans(),
)


def prepare_step(live, rng):
    """Return the requests that take part; results of others are processed, some are retracted."""
    members = [request for request in live if rng.random() < 0.9]
    for request in live:
        host = request.host
        if request not in members:
            host.output_ids.extend(host.fresh)
            host.fresh = []
        elif rng.random() < 0.1:  # retracted: what was pending is dropped
            host.fresh = []
            for row in rows_of([request.params]):
                if row is not None:
                    row.rewind()
    return members


def chosen_node(rng, width, parents, token_ids, rows):
    """Return any node whose path the edited logits allow."""
    node = 0
    while rng.random() < 0.7:
        allowed = [
            child
            for child in range(1, width)
            if parents[child] == node and rows[node][token_ids[child]] > -INF
        ]
        if not allowed:
            break
        node = rng.choice(allowed)
    return node


@examples(10)
@given(plans)
def test_every_node_of_every_draft_is_edited_as_the_oracle_says(plan):
    rng = random.Random(plan.seed)
    batch = ServedBatch()
    live = [Request(*pair) for pair in zip(plan.kinds, plan.prompts, strict=False)]
    for width in plan.widths:
        members = prepare_step(live, rng)
        if not members:
            continue
        paths, trees, token_ids, before, after = verify(
            batch, members, rng, width, chain=plan.chain
        )
        for i, request in enumerate(members):
            rows = after[i * width : (i + 1) * width]
            for node, row in enumerate(before[i * width : (i + 1) * width].tolist()):
                output = [*request.host.history, *paths[i][node]]
                wanted = expected(request.kind, row, [*request.host.prompt_ids], output)
                assert rows[node].tolist() == pytest.approx(wanted), (node, output)
            assert request.host.ends == []
            parents = trees[i][0]
            node = chosen_node(rng, width, parents, token_ids[i], rows)
            pending = rng.random() < 0.5
            accept(request, node, parents, token_ids[i], rows[node], leave_pending=pending)


class FailsAt(LogitProcessor):
    """Fails where the history ends with 7, and finishes where it ends with 8."""

    def edit(self, request, edits):
        if request.output_ids[-1:].tolist() == [7]:
            raise ValueError
        if request.output_ids[-1:].tolist() == [8]:
            edits.finish("eight")


def drafted(kind, token_ids, *, limit=1 << 62):
    """Play one chain of drafted tokens; return the request."""
    request = Request(kind, [1], limit=limit)
    width = len(token_ids) + 1
    links = [*range(1, width), -1]

    def drafts():
        return Drafts(width, [[1, *token_ids]], [links], [[-1] * width])

    logits = torch.zeros(width, VOCAB)
    Batch().step(logits, rows_of([request.params]), [request.params], drafts=drafts, width=width)
    return request


FAILS = KINDS[1]._replace(processor=FailsAt, params={})


def test_a_fault_at_a_node_names_the_drafts_that_it_depends_on():
    request = drafted(FAILS, [5, 7, 6])

    ((position, path, error),) = request.host.ends
    assert (position, path) == (2, (5, 7))
    assert isinstance(error, ProcessorFault)


class LeavesNone(LogitProcessor):
    """Bans everything where the history ends with 7."""

    def edit(self, request, edits):
        if request.output_ids[-1:].tolist() == [7]:
            edits.ban(range(VOCAB))


@pytest.mark.parametrize("kind", [FailsAt, LeavesNone])
def test_a_fault_at_a_node_says_at_which_token(kind):
    request = drafted(KINDS[1]._replace(processor=kind, params={}), [5, 7, 6])

    ((_, _, error),) = request.host.ends
    assert f"{kind.__name__} failed at token 2: " in str(error)


def test_an_end_at_a_node_names_the_drafts_that_it_depends_on():
    request = drafted(FAILS, [5, 8, 7])

    assert request.host.finishes == [(2, (5, 8), End("eight", "stop"))]
    assert request.host.ends == [], "what follows the end does not count"


def test_nodes_behind_the_last_token_of_a_request_are_not_looked_at():
    assert drafted(FAILS, [5, 7], limit=2).host.ends == []
    assert drafted(FAILS, [5, 7], limit=3).host.ends != []


class Sleeps(LogitProcessor):
    """Edits the first token, and from the tenth on."""

    def edit(self, request, edits):
        if request.position == 0 or request.position >= 10:
            edits.ban([request.position % VOCAB])
        edits.wake_at(10)


def test_a_sleeping_row_does_not_ask_for_drafts():
    request, batch, asked = (
        Request(KINDS[1]._replace(processor=Sleeps, params={}), [1]),
        ServedBatch(),
        [],
    )
    width = 4
    links = [1, 2, 3, -1]

    def drafts():
        asked.append(len(request.host.history))
        return Drafts(width, [[1, 2, 3, 4]], [links], [[-1] * width])

    for length in range(0, 12, 2):
        logits = torch.zeros(width, VOCAB)
        params = [request.params]
        batch.run(logits, params, drafts=drafts, width=width)
        banned = (logits == -INF).nonzero().tolist()
        edited = [0] if length == 0 else [node for node in range(width) if length + node >= 10]
        assert banned == [[node, (length + node) % VOCAB] for node in edited]
        request.host.output_ids.extend([5, 6])

    # A row is woken early, because two of the four tokens that a step may bring did not come.
    assert asked[0] == 0
    assert 2 not in asked
