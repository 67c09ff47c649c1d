"""A processor that misbehaves ends its own request and touches no other."""

import asyncio
import math
import re
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.errors import ProcessorFault, RequestError
from sglang_lp.faults import interrupt, show_interrupts
from sglang_lp.links import Flags, Serving
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest

pytestmark = pytest.mark.usefixtures("interrupts_are_shown")

VOCAB = 8
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Good(LogitProcessor):
    def start(self, request):
        return []

    def advance(self, request, token_ids):
        request.state.extend(token_ids)

    def edit(self, request, edits):
        edits.ban([len(request.state)])


class GoodFixed(LogitProcessor):
    needs = History.NONE

    def edit(self, request, edits):
        edits.allow_only([1, 2, 3])


class GoodRow(LogitProcessor):
    def edit(self, request, edits):
        request.logits[1:] *= 0.5
        edits.bias([0], [1.0])


class GoodDense(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits * 0.25


class Fails(LogitProcessor):
    """Fails as ``params`` says; counts how often it was asked."""

    asked = 0

    class Params(Parameters, frozen=True):
        how: str

    def start(self, request):
        fail_if(request.params.how == "start")
        fail_if(request.params.how == "start_exit", SystemExit())

    def advance(self, request, token_ids):
        fail_if(request.params.how == "advance")
        fail_if(request.params.how == "advance_exit", SystemExit())

    def edit(self, request, edits):
        Fails.asked += 1
        edits.ban([0, 1])
        edits.bias([2], [3.0])
        HOW.get(request.params.how, lambda _request, _edits: None)(request, edits)


class FailsDense(LogitProcessor):
    class Params(Parameters, frozen=True):
        how: str

    def __call__(self, logits, custom_param_list=None):
        logits[:] = 7.0  # a copy: gone if anything fails
        hows = {params["how"] for params in custom_param_list}
        for how in hows - {"nothing"}:
            return DENSE[how](logits)
        return logits


class FailsFixed(LogitProcessor):
    needs = History.NONE

    class Params(Parameters, frozen=True):
        how: str

    edit = Fails.edit


class Unprintable(Exception):
    def __str__(self):
        raise SystemExit


class Unnameable(ValueError):
    __module__ = property(lambda self: sys.exit())

    def __repr__(self):
        raise KeyboardInterrupt

    @property
    def __class__(self):
        raise SystemExit


class Untold(RequestError):
    def __str__(self):
        raise SystemExit


class Miscoded(RequestError):
    code = property(lambda self: sys.exit())


def fail_if(condition, error=None):
    if condition:
        raise error or ValueError("a secret")


def recurse():
    recurse()


HOW = {
    "edit": lambda request, edits: fail_if(True),
    "unprintable": lambda request, edits: fail_if(True, Unprintable()),
    "stop": lambda request, edits: fail_if(True, StopIteration()),
    "memory": lambda request, edits: fail_if(True, MemoryError()),
    "recursion": lambda request, edits: recurse(),
    "exit": lambda request, edits: sys.exit("a secret"),
    "interrupt": lambda request, edits: fail_if(True, KeyboardInterrupt()),
    "cancelled": lambda request, edits: fail_if(True, asyncio.CancelledError()),
    "generator": lambda request, edits: fail_if(True, GeneratorExit()),
    "unnameable": lambda request, edits: fail_if(True, Unnameable()),
    "untold": lambda request, edits: fail_if(True, Untold()),
    "miscoded": lambda request, edits: fail_if(True, Miscoded("n: a secret")),
    "unsendable": lambda request, edits: fail_if(True, ProcessorFault("\ud800")),
    "outside": lambda request, edits: edits.ban([VOCAB]),
    "negative": lambda request, edits: edits.force(-1),
    "type": lambda request, edits: edits.ban("abc"),
    "nothing_allowed": lambda request, edits: edits.allow_only([]),
    "bias": lambda request, edits: edits.bias([1], [math.nan]),
    "reason": lambda request, edits: edits.finish(5),
    "unsendable_reason": lambda request, edits: edits.finish("\ud800"),
    "wake": lambda request, edits: edits.wake_at("soon"),
    "two_forced": lambda request, edits: (edits.force(5), edits.force(6)),
    "forced_banned": lambda request, edits: edits.force(0),
    "disjoint": lambda request, edits: (edits.allow_only([3]), edits.allow_only([4])),
    "all_banned": lambda request, edits: edits.ban(range(VOCAB)),
}
ROW = {
    "row_nan": lambda request, edits: request.logits.fill_(math.nan),
    "row_one_nan": lambda request, edits: request.logits[3:4].fill_(math.nan),
    "row_inf": lambda request, edits: request.logits[3:4].fill_(math.inf),
    "row_dead": lambda request, edits: request.logits.fill_(-math.inf),
    "row_then_error": lambda request, edits: fail_if(request.logits.fill_(9.0) is not None),
    "row_then_conflict": lambda request, edits: (request.logits.zero_(), edits.force(0)),
}
HOW |= ROW
DENSE = {
    "error": lambda logits: fail_if(True),
    "exit": lambda logits: sys.exit(),
    "none": lambda logits: None,
    "rows": lambda logits: logits[:-1],
    "columns": lambda logits: logits[:, :-1],
    "flat": lambda logits: logits[0],
    "numpy": lambda logits: np.zeros(tuple(logits.shape)),
    "complex": lambda logits: logits.to(torch.complex64),
    "meta": lambda logits: torch.empty(logits.shape, device="meta"),
    "list": lambda logits: logits.tolist(),
    "nan": lambda logits: logits.fill_(math.nan),
    "one_nan": lambda logits: logits.index_fill_(1, torch.tensor([3]), math.nan),
    "inf": lambda logits: logits.index_fill_(1, torch.tensor([3]), math.inf),
    "dead": lambda logits: logits.fill_(-math.inf),
    "too_large": lambda logits: logits.to(torch.float64).fill_(1e300),
}


def request_of(processor, **params):
    custom_params = FakeRequest([1, 2], [3], served=True).custom_params(params)
    parsed = processor.parse_params(params, VOCAB)
    made = processor()
    attach_row(
        custom_params,
        [Serving(made, parsed, known=Flags.of(made))],
        StockHost(custom_params["__req__"], may_lag=False),
    )
    return custom_params


def play(batch, requests, dtype):
    """Play three steps; return the logits of each."""
    results = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(5, VOCAB, generator=generator).to(dtype)[: len(requests)].clone()
        batch.step(logits, rows_of(requests), requests)
        results.append(logits)
        for params in requests:
            if params is not None:
                params["__req__"].append(4)
    return results


def neighbours():
    return [request_of(GoodFixed), request_of(Good), request_of(GoodRow), request_of(GoodDense)]


CASES = [
    *((Fails, how) for how in ("start", "start_exit", "advance", "advance_exit", *HOW)),
    *((FailsDense, how) for how in DENSE),
    *((FailsFixed, how) for how in HOW),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("processor", "how"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_a_fault_ends_its_own_request_and_leaves_the_others_alone(processor, how, dtype):
    bad, others = request_of(processor, how=how), neighbours()
    before = Fails.asked

    # The failing row is in the middle: an edit that is off by one would be seen.
    with_fault = play(Batch(), [*others[:2], bad, *others[2:]], dtype)
    without = play(Batch(), [*neighbours()[:2], None, *neighbours()[2:]], dtype)

    for step, expected in zip(with_fault, without, strict=True):
        kept = [0, 1, 3, 4]
        assert torch.equal(step[kept], expected[kept])
        # A row may be computed before its edits turn out to contradict each other.
        written = (processor, how) == (Fails, "row_then_conflict") and step is with_fault[0]
        assert torch.equal(step[2], expected[2]) != written, "a row that failed was edited"
    for good in others:
        assert good["__req__"].to_finish is None
    ended = bad["__req__"].to_finish
    assert ended.status_code == 500
    assert processor.__name__ in ended.message
    assert ended.message.encode(), "SGLang's processes could not send it"
    assert Fails.asked - before <= 1, "asked again after it had failed"


def test_the_message_names_the_token_and_the_error():
    bad = request_of(Fails, how="edit")

    play(Batch(), [bad], torch.float32)

    assert bad["__req__"].to_finish.message == "Fails failed at token 1: 'ValueError: a secret'"


# Logging all frames of a deep recursion took 20 ms, in a step that all requests share.
def test_of_a_deep_recursion_the_innermost_frames_are_logged(caplog):
    play(Batch(), [request_of(Fails, how="recursion")], torch.float32)

    (repeated,) = re.findall(r"repeated (\d+) more times", caplog.text)
    assert int(repeated) <= 20
    assert "RecursionError" in caplog.text


class Nameless(Fails):
    """Can be asked for its name once."""

    named = 0

    @property
    def name(self):
        Nameless.named += 1
        fail_if(Nameless.named > 1, SystemExit())
        return "Nameless"


def test_a_processor_without_a_name_ends_its_own_request():
    bad, good = request_of(Nameless, how="edit"), request_of(Good)

    play(Batch(), [bad, good], torch.float32)

    assert bad["__req__"].to_finish.message.startswith("Nameless failed at token 1: ")
    assert good["__req__"].to_finish is None


def test_of_several_rows_that_a_dense_processor_gets_only_the_bad_one_ends():
    requests = [request_of(FailsDense, how=how) for how in ("nothing", "error", "nothing", "nan")]

    logits = play(Batch(), requests, torch.float32)[0]

    ended = [params["__req__"].to_finish is not None for params in requests]
    assert ended == [False, True, False, True]
    assert torch.equal(logits[[0, 2]], torch.full((2, VOCAB), 7.0))
    assert (logits[[1, 3]] != 7.0).all()


@pytest.mark.parametrize("how", ["edit", "two_forced", "row_nan"])
def test_without_a_server_a_fault_is_raised(how):
    with pytest.raises(ProcessorFault, match="Fails failed at token 0"):
        Fails()(torch.zeros(1, VOCAB), [FakeRequest([1]).custom_params({"how": how})])


class ShutsAndAllows(LogitProcessor):
    """Takes by its edits what it left in its row."""

    def edit(self, request, edits):
        request.logits[3] = -math.inf
        edits.allow_only([3])


def test_a_request_whose_row_and_edits_leave_no_token_ends():
    requests = [request_of(ShutsAndAllows), request_of(Good)]
    logits = torch.zeros(2, VOCAB)

    Batch().step(logits, rows_of(requests), requests)

    assert logits[0].isfinite().any(), "sampling from a row of -inf ends SGLang's scheduler"
    assert "no token is left" in requests[0]["__req__"].to_finish.message
    assert requests[1]["__req__"].to_finish is None


# Signals


class Signalled(LogitProcessor):
    """Gets a signal while it runs."""

    class Params(Parameters, frozen=True):
        number: int

    def edit(self, request, edits):
        signal.raise_signal(request.params.number)


def stop(_number, _frame):
    sys.exit(3)


@pytest.mark.parametrize(
    ("number", "handler", "raised"),
    [
        (signal.SIGINT, interrupt, KeyboardInterrupt),
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, stop, SystemExit),
    ],
)
def test_a_signal_ends_the_process_inside_a_processor_too(number, handler, raised):
    params = request_of(Signalled, number=int(number))
    before = signal.signal(number, handler)
    try:
        with pytest.raises(raised):
            Batch().step(torch.zeros(1, VOCAB), rows_of([params]), [params])
    finally:
        signal.signal(number, before)
    assert params["__req__"].to_finish is None


def test_a_handler_of_interrupts_that_somebody_chose_stays():
    before = signal.signal(signal.SIGINT, stop)
    try:
        show_interrupts()
        assert signal.getsignal(signal.SIGINT) is stop
    finally:
        signal.signal(signal.SIGINT, before)


# The model's own logits


class Writes(LogitProcessor):
    """Changes one logit of its row."""

    def edit(self, request, edits):
        request.logits[1] = 2.0


def restricted(processor):
    """Return a request for which SGLang may set logits to ``-inf`` itself."""
    request = FakeRequest([1], served=True)
    request.sampling_params = SimpleNamespace(min_new_tokens=5, logit_bias=None)
    params = request.custom_params({})
    host = StockHost(request, may_lag=False)
    attach_row(params, [Serving(processor(), processor.parse_params({}))], host)
    return params


class Sleeps(LogitProcessor):
    def edit(self, request, edits):
        edits.wake_at(100)


@pytest.mark.parametrize("others", [[], [Good], [GoodRow, GoodFixed]])
@pytest.mark.parametrize("processor", [Good, Writes, GoodDense])
@pytest.mark.parametrize("spoiled", [math.nan, math.inf])
def test_an_edited_row_that_the_model_spoiled_ends_as_a_fault_whoever_shares_its_batch(
    processor, others, spoiled
):
    requests = [restricted(processor), *map(request_of, others)]
    logits = torch.zeros(len(requests), VOCAB)
    logits[0, 7] = spoiled

    Batch().step(logits, rows_of(requests), requests)

    reasons = [params["__req__"].to_finish for params in requests]
    assert (reasons[0].status_code, reasons[1:]) == (500, [None] * len(others))
    assert "the model itself wrote NaN" in reasons[0].message
    assert logits[0].tolist() == [0.0] * VOCAB
    assert logits.isfinite().any(-1).all()


@pytest.mark.parametrize("processor", [Sleeps, GoodFixed])
def test_a_row_that_the_model_spoiled_goes_on_if_unedited_or_if_the_edits_mask_what_it_spoiled(
    processor,
):
    params = restricted(processor)
    logits = torch.zeros(1, VOCAB)
    logits[0, 7] = math.nan

    Batch().step(logits, rows_of([params]), [params])

    assert params["__req__"].to_finish is None


# Grammars


class Forces(LogitProcessor):
    def edit(self, request, edits):
        edits.force(3)


class ForcesFixed(LogitProcessor):
    needs = History.NONE

    def edit(self, request, edits):
        edits.force(3)


class Reopens(LogitProcessor):
    def edit(self, request, edits):
        request.logits.fill_(5.0)


class ReopensDense(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return torch.full_like(logits, 5.0)


class Biases(LogitProcessor):
    def edit(self, request, edits):
        edits.bias(range(VOCAB), [10_000.0] * VOCAB)


@pytest.mark.parametrize("processor", [Forces, ForcesFixed, Reopens, ReopensDense, Biases])
def test_no_processor_opens_a_token_that_a_grammar_masked(processor):
    requests = [request_of(processor), request_of(processor), request_of(Good)]
    logits = torch.zeros(3, VOCAB)
    logits[0, 3:] = -math.inf

    Batch().step(logits, rows_of(requests), requests, grammar_rows=[0])

    assert (logits[0, 3:] == -math.inf).all()
    assert logits[0].isfinite().any()
    assert logits[1, 3].isfinite(), "a row without a grammar has none of its limits"
    assert requests[1]["__req__"].to_finish is None


class AllowsOne(LogitProcessor):
    def edit(self, request, edits):
        edits.allow_only([3])


class AllowsOneFixed(AllowsOne):
    needs = History.NONE


def only_three(logits):
    return torch.full_like(logits, -math.inf).index_copy_(-1, THREE, logits[..., THREE])


class AllowsOneDense(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return only_three(logits)


class AllowsOneItself(LogitProcessor):
    def edit(self, request, edits):
        request.logits.copy_(only_three(request.logits))


THREE = torch.tensor([3])
ALLOW_ONE = [AllowsOne, AllowsOneFixed, AllowsOneDense, AllowsOneItself]


@pytest.mark.parametrize("processor", ALLOW_ONE)
@pytest.mark.parametrize("setting", [{"min_new_tokens": 5}, {"logit_bias": {"3": -1e39}}])
def test_a_request_whose_own_settings_and_processor_leave_no_token_ends(processor, setting):
    request = FakeRequest([1], served=True)
    request.sampling_params = SimpleNamespace(
        **{"min_new_tokens": 0, "logit_bias": None, **setting}
    )
    params = request.custom_params({})
    attach_row(
        params,
        [Serving(processor(), processor.parse_params({}))],
        StockHost(request, may_lag=False),
    )
    requests = [params, request_of(Good)]
    logits = torch.zeros(2, VOCAB)
    logits[0, 3] = -math.inf  # as SGLang sets an end token before min_new_tokens
    before = logits.clone()

    Batch().step(logits, rows_of(requests), requests)

    assert torch.equal(logits[0], before[0]), "sampling from a row of -inf ends SGLang's scheduler"
    assert "min_new_tokens" in request.to_finish.message
    assert logits[1].isfinite().any()
    assert requests[1]["__req__"].to_finish is None


@pytest.mark.parametrize("processor", [Forces, ForcesFixed, *ALLOW_ONE])
def test_a_request_whose_grammar_and_processor_leave_no_token_ends(processor):
    requests = [request_of(processor), request_of(Good)]
    logits = torch.zeros(2, VOCAB)
    logits[0, 3:] = -math.inf
    before = logits.clone()

    Batch().step(logits, rows_of(requests), requests, grammar_rows=[0])

    assert torch.equal(logits[0], before[0])
    assert "grammar" in requests[0]["__req__"].to_finish.message
    assert requests[1]["__req__"].to_finish is None


def test_a_grammar_that_comes_later_binds_edits_that_never_change():
    batch, params = Batch(), request_of(ForcesFixed)
    batch.step(torch.zeros(1, VOCAB), rows_of([params]), [params])
    logits = torch.zeros(1, VOCAB)
    logits[0, 3] = -math.inf

    batch.step(logits, rows_of([params]), [params], grammar_rows=[0])

    assert logits[0, 3] == -math.inf
