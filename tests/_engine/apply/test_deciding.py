"""Decisions of the device, compared with decisions of the host on the same logits."""

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp._engine.history.host import Host
from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.errors import ProcessorFault
from sglang_lp.links import Serving, prepare
from sglang_lp.params import NonNegativeInt, Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest
from sglang_lp.testing.deciding import decided_as_on_a_gpu
from support.examples import examples

VOCAB = 7
#: Few values, so that many tie; -inf and NaN are rarer.
LOGIT = st.sampled_from([-1.0, 0.0, 0.5, 2.0] * 3 + [-math.inf, math.nan])
TOKEN = st.integers(0, VOCAB - 1)
IDS = st.lists(TOKEN, min_size=1, max_size=3)
ELSE = ["ban", "ban", "bias", "allow", "force", "always", "finish"]
EDITS = st.dictionaries(st.sampled_from([*ELSE, "pool"]), IDS, max_size=2)
OTHERWISE = st.dictionaries(st.sampled_from(ELSE), IDS, max_size=2)
STEP = st.fixed_dictionaries(
    {
        "edits": EDITS,
        "asked": st.lists(st.tuples(IDS, st.integers(1, VOCAB + 1), TOKEN, OTHERWISE), max_size=2),
        "rewrite": st.sampled_from([None, None, None, "before", "after"]),
    }
)
QUIET = {"edits": {}, "asked": [], "rewrite": None}
#: Of each link, what it does at each position.
PLANS = []


def declare(edits, declared):
    for what, ids in declared.items():
        match what:
            case "ban":
                edits.ban(ids)
            case "allow":
                edits.allow_only(ids)
            case "bias":
                edits.bias(ids, 1.5)
            case "pool":
                edits.pool([i for i in ids if i != ids[0]], ids[0])
            case "force":
                edits.force(ids[0])
            case "always":
                edits.always().ban(ids)
            case "finish":
                edits.finish("enough")


class Planned(LogitProcessor):
    """Does what is planned for its position."""

    class Params(Parameters):
        plan: NonNegativeInt

    def edit(self, request, edits):
        plan = PLANS[request.params.plan]
        now = plan[request.position] if request.position < len(plan) else QUIET
        if now["rewrite"] == "before":
            request.logits.mul_(-1.0)
        for ids, count, token_id, otherwise in now["asked"]:
            declare(edits.force_if(request.is_among_top(ids, count), token_id), otherwise)
        if now["rewrite"] == "after":
            request.logits.mul_(-1.0)
        declare(edits, now["edits"])


class Doubles(LogitProcessor):
    """Computes whole rows, before what is asked."""

    def compute(self, logits, requests, custom_params):
        return logits.roll(1, -1)


def chain(plans):
    """Return the parameters of links with these plans; ``None`` for one that computes rows."""
    first = len(PLANS)
    PLANS.extend(plans)
    links = [Doubles if plan is None else Planned for plan in plans]
    return {
        "chain": [f"{link.__module__}:{link.__name__}" for link in links],
        **{f"{place}.plan": first + place for place, plan in enumerate(plans) if plan is not None},
    }


def bits(tensor):
    tensor = tensor.masked_fill(tensor.isnan(), math.nan)  # which has many spellings
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32).tolist()


class Watched(Host):
    """A request whose ends are noted."""

    __slots__ = ("ends",)

    def __init__(self, request):
        super().__init__(request)
        self.ends = []

    def end(self, error):
        # Which of several conflicts an error names depends on their order.
        self.ends.append(str(error).partition(" is left")[0])

    def finish(self, end):
        self.ends.append(end)

    def end_at(self, position, drafted, error):
        self.ends.append((position, [*drafted], str(error).partition(" is left")[0]))

    def finish_at(self, position, drafted, end):
        self.ends.append((position, [*drafted], end))


def attached(processor, given):
    """Return a host of a request with these parameters, and them with the row in them."""
    host = Watched(FakeRequest([1, 2]))
    custom_params = host.request.custom_params(given)
    attach_row(custom_params, prepare(processor(), given, ServedModel(None, VOCAB)), host)
    return host, custom_params


def outcome(params, steps, masked=(), width=1, *, processor=ChainLogitProcessor):
    """Play steps; return the logits of each, how requests end, and their reports."""
    batch = Batch()
    hosts, given = zip(*[attached(processor, one) for one in params], strict=True)
    links = [*range(1, width), -1], [-1] * width
    edited = []
    for logits in steps:
        before = logits.clone(memory_format=torch.preserve_format)
        tokens = [[0] * width] * len(hosts)
        drafts = Drafts(width, tokens, *([part] * len(hosts) for part in links))
        batch.step(before, rows_of(given), given, masked, drafts=lambda d=drafts: d, width=width)
        after = before.contiguous()
        edited.append(bits(after))
        for host, row in zip(hosts, after[width - 1 :: width], strict=True):
            newest = int(row.nan_to_num(nan=-math.inf).argmax())
            host.request.output_ids.extend([*[0] * (width - 1), newest])
    told = []
    for host, row in zip(hosts, rows_of(given), strict=True):
        output_ids = host.request.output_ids
        row.edit_log.finish(output_ids)
        told.append(row.edit_log.report(0, len(output_ids)))
    return edited, [host.ends for host in hosts], told


@examples(0.4)
@given(st.data())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 3])
def test_the_device_decides_as_the_host_would(width, dtype, data):
    rows = data.draw(st.integers(1, 3))
    plan = st.one_of(st.none(), *[st.lists(STEP, max_size=4)] * 5)
    plans = [data.draw(st.lists(plan, min_size=1, max_size=3)) for _ in range(rows)]
    # A chain takes one link that computes whole rows.
    plans = [
        [p for i, p in enumerate(row) if p is not None or None not in row[:i]] for row in plans
    ]
    params = [chain(row) for row in plans]
    row = st.lists(LOGIT, min_size=VOCAB, max_size=VOCAB)
    step = st.lists(row, min_size=rows * width, max_size=rows * width)
    steps = [torch.tensor(data.draw(step), dtype=dtype) for _ in range(3)]
    masked = [i for i in range(rows * width) if data.draw(st.booleans())]

    expected = outcome(params, steps, masked, width)
    with decided_as_on_a_gpu():
        assert outcome(params, steps, masked, width) == expected


def plan_of(**step):
    PLANS.append([{**QUIET, **step}])
    return {"plan": len(PLANS) - 1}


@pytest.mark.parametrize("count", [1, 2])
def test_a_row_without_a_question_is_not_decided_for_its_likeliest_token_0(count):
    params = [chain([None]), chain([[{**QUIET, "asked": [([0], count, 0, {})]}]])]
    steps = [torch.zeros((2, VOCAB))]
    with decided_as_on_a_gpu():
        (((without, asking),), _, _) = outcome(params, steps)

    assert without == [0] * VOCAB
    assert asking == bits(torch.tensor([0.0] + [-math.inf] * (VOCAB - 1)))


ROW = torch.tensor([[2.0, 1.0, 2.0, 0.5, -math.inf, -1.0, -2.0]])


@pytest.mark.parametrize(("rows", "strides"), [(2, (20, 1)), (2, (1, 5)), (1, (1, 1))])
def test_the_device_reads_and_writes_its_rows_wherever_they_lie(rows, strides):
    params = [plan_of(asked=[([1], 3, 5, {"ban": [0]})]) for _ in range(rows)]
    logits = torch.zeros(60).as_strided((rows, VOCAB), strides)
    logits.copy_(ROW.roll(2, 1).expand(rows, VOCAB))

    expected = outcome(params, [logits], processor=Planned)
    with decided_as_on_a_gpu():
        assert outcome(params, [logits], processor=Planned) == expected


class Asks(LogitProcessor):
    """Forces token 5 if a token is among the likeliest, and bans token 6 if not."""

    def __init__(self, token_ids, count):
        self.token_ids, self.count = token_ids, count

    def edit(self, request, edits):
        edits.force_if(request.is_among_top(self.token_ids, self.count), 5).ban([6])


@pytest.mark.parametrize("count", [1, 2, 100, 900, 3000])
@pytest.mark.parametrize("broken", [0, 30])
def test_any_number_of_the_likeliest_and_none_beside_broken_logits(count, broken):
    torch.manual_seed(count)
    row = torch.randn(1, 4000)
    row[0, :broken] = math.nan
    ranked = (row[0, broken:].argsort(descending=True) + broken).tolist()
    for asked, expected in (
        (ranked[count - 1 : count], not broken),
        (ranked[count : count + 1], False),
        (ranked[count:], False),
        ([0, *ranked[:1]], not broken),
    ):
        logits = row.clone()
        with decided_as_on_a_gpu():
            Asks(asked, count)(logits, [FakeRequest([1]).custom_params({})])
        assert (int(logits.isfinite().sum()) == 1) == expected
        assert logits[0, 5] == 0.0 if expected else logits[0, 6] == -math.inf


@pytest.mark.parametrize(("token_ids", "count"), [([], 1), ([VOCAB], 1), ([-1], 1), ([1], 0)])
@pytest.mark.parametrize("how", [nullcontext, decided_as_on_a_gpu])
def test_what_cannot_be_asked_ends_the_request(how, token_ids, count):
    with how(), pytest.raises(ProcessorFault, match=r"is_among_top|outside the vocabulary"):
        Asks(token_ids, count)(ROW.clone(), [FakeRequest([1]).custom_params({})])


class Keeps(LogitProcessor):
    """Keeps an answer beyond its step."""

    def start(self, request):
        return []

    def edit(self, request, edits):
        if any(request.state):
            edits.ban([1])
        request.state.append(request.is_among_top([0], 1))


def test_an_answer_is_for_the_edit_that_asked():
    request = FakeRequest([1])
    params = [request.custom_params({})]
    with decided_as_on_a_gpu():
        Keeps()(ROW.clone(), params)
        request.append(1)
        with pytest.raises(ProcessorFault, match="only in the edit"):
            Keeps()(ROW.clone(), params)


@pytest.mark.parametrize(
    ("misuse", "why"),
    [
        (lambda edits, answer: (edits.force_if(answer, 1), edits.hold_until(9)), "hold_until"),
        (lambda edits, answer: edits.always().force_if(answer, 1), "for one step"),
        (lambda edits, answer: edits.force_if(answer, 1).pool([2], 3), r"pool\(\)"),
    ],
)
def test_what_holds_or_pools_depends_on_no_answer(misuse, why):
    class Misuses(LogitProcessor):
        def edit(self, request, edits):
            misuse(edits, request.is_among_top([0], 1))

    with decided_as_on_a_gpu(), pytest.raises(ProcessorFault, match=why):
        Misuses()(ROW.clone(), [FakeRequest([1]).custom_params({})])


class Waits(LogitProcessor):
    """Forces token 5 where token 0 is the likeliest; needs positions only."""

    needs = History.POSITION

    def edit(self, request, edits):
        edits.force_if(request.is_among_top([0], 1), 5)


@pytest.mark.parametrize("needs", [History.POSITION, History.TOKENS])
def test_what_was_forced_is_known_when_its_token_is(needs):
    class Needs(Waits):
        def edit(self, request, edits):
            super().edit(request, edits)

    Needs.needs = needs
    request = FakeRequest([1], served=True)
    host = StockHost(request, may_lag=False)
    params = [request.custom_params({})]
    attach_row(params[0], [Serving(Needs(), None)], host)
    (row,) = rows_of(params)
    other = ROW.roll(1, -1)
    with decided_as_on_a_gpu():
        batch = Batch()
        for logits, dropped in ((other, False), (ROW, True), (other, False), (ROW, False)):
            batch.step(logits.clone(), [row], params)
            if dropped:
                row.rewind()
            else:
                request.append(1)
        batch.step(ROW.clone(), [row], params)  # its token never comes
        row.edit_log.finish(request.output_ids)

    assert row.edit_log.report(0, 3)["forced_at"] == [[2, 3]]
    assert row.edit_log.report(0, 3)["forced"] == 1
