"""Raw logprobs of edited tokens, compared with a softmax over the unedited logits."""

import gc
import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.apply.raw import RawLogprobs
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp._engine.history.host import Host
from sglang_lp.links import Serving
from sglang_lp.processor import LogitProcessor
from sglang_lp.testing import FakeRequest
from sglang_lp.testing.deciding import decided_as_on_a_gpu
from support.examples import examples

VOCAB, TOKEN = 13, 6
DECLARED = {
    "nothing": lambda _edits: None,
    "ban": lambda edits: edits.ban([1, 2]),
    "ban for good": lambda edits: edits.always().ban([3]),
    "hold": lambda edits: (edits.ban([4, 5]), edits.hold_until(1_000)),
    "allow": lambda edits: edits.allow_only([TOKEN, 7, 8]),
    "force": lambda edits: edits.force(TOKEN),
    "force and ban": lambda edits: (edits.ban([1]), edits.force(TOKEN)),
    "bias": lambda edits: edits.bias([TOKEN, 7], 2.5),
    "bias for good": lambda edits: (edits.always().bias([TOKEN], -1.5), edits.ban([1])),
    "near top": lambda edits: edits.keep_near_top(1.0),
    "ban near top for good": lambda edits: (edits.always().keep_near_top(1.5), edits.ban([1])),
    "scale": lambda edits: edits.scale(0.5),
    "scale for good": lambda edits: (edits.always().scale(3.0), edits.ban([1])),
    "pool": lambda edits: edits.pool([7, 8], TOKEN),
}
#: Edits that depend on an answer of the device.
ASKED = {
    "force or ban": lambda edits, answer: edits.force_if(answer, TOKEN).ban([1]),
    "force or bias": lambda edits, answer: edits.force_if(answer, TOKEN).bias([7], 2.5),
}


class Declares(LogitProcessor):
    def __init__(self, what):
        self.what = what

    def edit(self, request, edits):
        if self.what in ASKED:
            ASKED[self.what](edits, request.is_among_top([3], VOCAB // 2))
        else:
            DECLARED[self.what](edits)


class Rewrites(LogitProcessor):
    def edit(self, request, edits):
        request.logits.mul_(0.5)


class Computes(LogitProcessor):
    def compute(self, logits, requests, custom_params):
        return logits.roll(1, -1)


OTHERS = {"rewrite": Rewrites, "compute": Computes}
PLANS = st.lists(
    st.tuples(st.sampled_from([None, *DECLARED, *ASKED, *OTHERS]), st.booleans()),
    min_size=1,
    max_size=6,
)


def request(kind, *, asks):
    """Return the ``custom_params`` of a request, and what takes its logprobs down."""
    if kind is None:
        return None, None
    processor = OTHERS[kind]() if kind in OTHERS else Declares(kind)
    host = Host(FakeRequest([1, 2, 3]))
    host.raw = RawLogprobs() if asks else None
    params = {"__req__": host.request}
    attach_row(params, [Serving(processor, None)], host)
    return params, host.raw


def logprobs_of(rows, temperatures, width):
    scaled = rows if temperatures is None else rows / temperatures.repeat_interleave(width, 0)
    return scaled.log_softmax(-1)


@examples(1)
@given(PLANS, st.sampled_from([1, 3]), st.booleans(), st.integers(0, 2**32))
def test_they_are_those_of_the_logits_as_they_were(plan, width, tempered, seed):
    torch.manual_seed(seed)
    plan = [(kind, asks) for kind, asks in plan if width == 1 or kind != "compute"]
    made = [request(kind, asks=asks) for kind, asks in plan]
    params = [one for one, _ in made]
    before = torch.randn(len(plan) * width, VOCAB) * 4
    logits = before.clone()
    temperatures = torch.rand(len(plan), 1) + 0.5 if tempered else None
    chain = [[*range(1, width), -1], [-1] * width]
    drafts = Drafts(width, [[9] * width] * len(plan), *([part] * len(plan) for part in chain))
    with decided_as_on_a_gpu():
        raw = Batch().step(
            *(logits, rows_of(params), params),
            drafts=(lambda: drafts) if width > 1 else None,
            width=width,
            temperatures=temperatures,
        )
    edited = {at for at, (kind, asks) in enumerate(plan) if asks and kind not in {None, "nothing"}}
    assert (set() if raw is None else {*raw.requests}) == edited
    if raw is None:
        return

    chosen = logits.softmax(-1).multinomial(1)
    told = logprobs_of(logits, temperatures, width).gather(1, chosen)[:, 0]
    own = logprobs_of(before, temperatures, width).gather(1, chosen)[:, 0]
    places = torch.randint(len(logits), (len(plan), 2)) if width > 1 else None
    where = torch.arange(len(logits)) if places is None else places.flatten()
    said = raw.logprobs(told[where], chosen[:, 0], None if places is None else places.flatten())

    expected = torch.tensor(
        [own[at] if at // width in edited else math.nan for at in where.tolist()]
    )
    torch.testing.assert_close(said, expected, equal_nan=True, atol=2e-5, rtol=1e-5)


def test_nothing_is_taken_down_where_nobody_asks():
    params, _ = request("ban", asks=False)
    assert Batch().step(torch.zeros(1, VOCAB), rows_of([params]), [params]) is None


def test_what_was_asked_for_goes_with_its_request():
    params, raw = request("ban", asks=True)
    assert raw in RawLogprobs.asked
    raw.add(4, [-1.5, math.nan, -math.inf])
    assert ([*raw.positions], [*raw.logprobs]) == ([4, 6], [-1.5, torch.finfo().min])

    del params, raw
    gc.collect()
    assert not RawLogprobs.asked
