"""Each edit changes its own row as documented, and no other row."""

import math
import random
import statistics
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.apply import cpu, cuda
from sglang_lp._engine.apply import plan_builder as builder_module
from sglang_lp._engine.apply.near_top import NearTop
from sglang_lp._engine.apply.plan import Plan
from sglang_lp._engine.apply.plan_builder import PlanBuilder
from sglang_lp._engine.apply.pools import pool
from sglang_lp._engine.compiled import biases as biases_module
from sglang_lp._engine.compiled import edits as compiled_module
from sglang_lp._engine.compiled.edits import WIDE, CompiledEdits
from sglang_lp.edits import MAX_BIAS, MAX_FACTOR, NEVER
from sglang_lp.edits import ids as ids_module
from sglang_lp.edits.ids import lasting
from sglang_lp.edits.recording import Recording
from sglang_lp.errors import ProcessorFault
from sglang_lp.processor import LogitProcessor
from sglang_lp.testing import FakeRequest
from support.examples import examples

INF = math.inf
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def recorded(vocab, calls):
    """Return the recording of each row, from calls such as ``(row, "ban", [1])``."""
    rows = {}
    for row, name, *args in calls:
        getattr(rows.setdefault(row, Recording(vocab)), name)(*args)
    return rows


def planned(tensor, rows, has_grammar=()):
    builder = PlanBuilder(tensor)
    for row, recording in rows.items():
        builder.add_step(row, recording, None, has_grammar=row in has_grammar)
    return Plan(builder, tensor)


def edited(*calls, logits=((1.0, 2.0, 3.0, 4.0),), has_grammar=()):
    """Apply calls such as ``(row, "ban", [1])``; return the rows and the conflicts."""
    tensor = torch.tensor(logits)
    plan = planned(tensor, recorded(tensor.shape[1], calls), has_grammar)
    plan.apply(tensor)
    if plan.near_top is not None:
        cpu.keep_near_top(tensor, [plan.near_top])
    if plan.factors is not None:
        cpu.scale(tensor, plan.factors)
    return tensor.tolist(), plan.conflicts


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], [1.0, 2.0, 3.0, 4.0]),
        ([("ban", [])], [1.0, 2.0, 3.0, 4.0]),
        ([("ban", [1, 3])], [1.0, -INF, 3.0, -INF]),
        ([("ban", [1]), ("ban", (1, 1))], [1.0, -INF, 3.0, 4.0]),
        ([("allow_only", [1, 3])], [-INF, 2.0, -INF, 4.0]),
        ([("allow_only", [1, 3]), ("allow_only", [3, 2])], [-INF, -INF, -INF, 4.0]),
        ([("allow_only", [1, 3]), ("ban", [3])], [-INF, 2.0, -INF, -INF]),
        ([("allow_only", [1, 1]), ("bias", [1, 2], [0.5, 0.5])], [-INF, 2.5, -INF, -INF]),
        ([("force", 2)], [-INF, -INF, 0.0, -INF]),
        ([("force", 2), ("force", 2)], [-INF, -INF, 0.0, -INF]),
        ([("force", 2), ("allow_only", [1, 2]), ("ban", [1])], [-INF, -INF, 0.0, -INF]),
        ([("force", 2), ("bias", [2], [5.0])], [-INF, -INF, 0.0, -INF]),
        ([("bias", [0, 2], [0.5, -0.5])], [1.5, 2.0, 2.5, 4.0]),
        ([("bias", [0, 0], [0.5, 1.0]), ("bias", [0], [1])], [3.5, 2.0, 3.0, 4.0]),
        ([("bias", [], [])], [1.0, 2.0, 3.0, 4.0]),
        ([("bias", [0, 2, 2], 0.5), ("bias", [0], [1.0])], [2.5, 2.0, 4.0, 4.0]),
        ([("bias", [1], 1)], [1.0, 3.0, 3.0, 4.0]),
        ([("bias", [0], [5.0]), ("ban", [0])], [-INF, 2.0, 3.0, 4.0]),
        ([("ban", {0: 1, 1: 0}.keys())], [-INF, -INF, 3.0, 4.0]),
        ([("ban", torch.tensor([0, 1]))], [-INF, -INF, 3.0, 4.0]),
        ([("scale", 2)], [2.0, 4.0, 6.0, 8.0]),
        ([("scale", 2), ("scale", 0.25), ("bias", [0], 1.0)], [4.0, 4.0, 6.0, 8.0]),
        ([("scale", 2), ("ban", [0]), ("keep_near_top", 1.5)], [-INF, -INF, 6.0, 8.0]),
        ([("scale", 2), ("force", 1)], [-INF, 0.0, -INF, -INF]),
        ([("keep_near_top", 1)], [-INF, -INF, 3.0, 4.0]),
        ([("keep_near_top", 2), ("keep_near_top", 0.1)], [-INF, -INF, -INF, 4.0]),
        ([("keep_near_top", 1.5), ("ban", [3])], [-INF, 2.0, 3.0, -INF]),
        ([("keep_near_top", 0.1), ("bias", [0], 9.0)], [10.0, -INF, -INF, -INF]),
        ([("keep_near_top", 0.1), ("force", 0)], [0.0, -INF, -INF, -INF]),
    ],
)
def test_an_edit_does_what_it_says(calls, expected):
    for order in (calls, calls[::-1]):
        rows, conflicts = edited(*((0, *call) for call in order))
        assert rows == [expected]
        assert conflicts == {}


@pytest.mark.parametrize(
    "calls",
    [
        [("force", 1), ("force", 2)],
        [("force", 1), ("ban", [1])],
        [("force", 1), ("allow_only", [2])],
        [("force", 1), ("force", 2), ("allow_only", [1])],
        [("allow_only", [1]), ("allow_only", [2])],
        [("allow_only", [1]), ("ban", [1, 3])],
        [("ban", [0, 1]), ("ban", [2, 3, 3])],
        [("ban", range(4)), ("bias", [0], [1.0])],
        [("ban", range(4)), ("force", 1)],
        [("ban", range(4)), ("allow_only", [1])],
    ],
)
def test_a_contradiction_is_reported_and_leaves_its_row_alone(calls):
    logits = [[1.0, 2.0, 3.0, 4.0]] * 3
    for order in (calls, calls[::-1]):
        rows, conflicts = edited(
            (0, "ban", [0]), *((1, *call) for call in order), (2, "force", 3), logits=logits
        )
        assert [*conflicts] == [1]
        assert rows[1] == logits[1]
        assert rows[0] == [-INF, 2.0, 3.0, 4.0]
        assert rows[2] == [-INF, -INF, -INF, 0.0]


def test_a_forced_token_keeps_its_logit_where_a_grammar_has_masked():
    calls = [(0, "force", 1), (1, "force", 1)]

    rows, _ = edited(*calls, logits=[[1.0, -INF], [1.0, -INF]], has_grammar=[0])

    assert rows == [[-INF, -INF], [-INF, 0.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("ban", [0, 4]), "4 is outside the vocabulary of 4"),
        (("ban", [-1]), "-1 is outside"),
        (("allow_only", [4]), "4 is outside"),
        (("allow_only", []), "at least one"),
        (("force", 4), "4 is outside"),
        (("force", -1), "-1 is outside"),
        (("bias", [4], [1.0]), "4 is outside"),
        (("bias", [1], []), "1 token ids and 0 values"),
        (("bias", [1, 2], [1.0]), "2 token ids and 1 values"),
        (("bias", [1], [math.nan]), "from -10000 to 10000, got nan"),
        (("bias", [1], math.nan), "got nan"),
        (("bias", [1], MAX_BIAS * 1.01), "got 10100.0"),
        (("bias", [1, 2], [0.5, INF]), "got inf"),
        (("scale", 0), "from 0.001 to 1000, got 0"),
        (("scale", -1), "from 0.001 to 1000"),
        (("scale", 1001), "from 0.001 to 1000"),
        (("scale", math.nan), "from 0.001 to 1000"),
        (("keep_near_top", 0), "finite number above 0"),
        (("keep_near_top", INF), "finite number above 0"),
        (("keep_near_top", math.nan), "finite number above 0"),
        (("bias", [1], [-MAX_BIAS * 1.01]), "got -10100.0"),
    ],
)
def test_an_edit_that_makes_no_sense_is_a_fault(call, message):
    with pytest.raises(ProcessorFault, match=message):
        edited((0, *call))


@pytest.mark.parametrize("ids", [[1.0], ["1"], [None], [[1]], 1, [b"1"]])
def test_only_integers_are_token_ids(ids):
    with pytest.raises(TypeError):
        edited((0, "ban", ids))


def test_a_list_may_change_after_it_was_given():
    edits, ids = Recording(4), [1]
    edits.ban(ids)
    ids[0] = 4
    logits = torch.zeros(1, 4)

    planned(logits, {0: edits}).apply(logits)

    assert logits.tolist() == [[0.0, -INF, 0.0, 0.0]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_biases_that_add_up_stay_finite(dtype):
    logits = torch.zeros(1, 2, dtype=dtype)
    edits = Recording(2)
    for _ in range(100):
        edits.bias([0, 1], [MAX_BIAS, -MAX_BIAS])

    planned(logits, {0: edits}).apply(logits)

    assert logits.isfinite().all()
    assert logits[0, 0] == torch.tensor(MAX_BIAS, dtype=dtype)


@pytest.mark.parametrize("other", [None, {}, [1], Recording])
def test_add_takes_a_recording_alone(other):
    with pytest.raises(ProcessorFault, match=r"add\(\) takes a Recording, got "):
        Recording(9).add(other)


def test_a_recording_takes_over_what_another_holds():
    one, other = Recording(4), Recording(4)
    one.ban([0])
    other.ban([1])
    other.bias([2], [1.0])
    one.add(other)
    logits = torch.zeros(1, 4)

    planned(logits, {0: one}).apply(logits)

    assert logits.tolist() == [[-INF, -INF, 1.0, 0.0]]


def test_a_plan_may_be_applied_again():
    logits = torch.ones(1, 3)
    edits = Recording(3)
    edits.allow_only([1, 2])
    edits.bias([1], [1.0])
    plan = planned(logits, {0: edits})
    plan.apply(logits)
    again = torch.ones(1, 3)

    plan.apply(again)

    assert torch.equal(again, logits)


@pytest.mark.parametrize(
    ("call", "wake"), [((), None), (("wake_at", 15), 15), (("wake_at", 0), 0), (("rest",), NEVER)]
)
def test_a_recording_knows_when_its_row_wakes(call, wake):
    edits = Recording(4)
    if call:
        getattr(edits, call[0])(*call[1:])

    assert edits.wake == wake


# Against a plain reference


def reference(row, edits, *, masked):
    """Edit one row, shape ``(vocab,)``, by the declarative rules; ``None`` for a conflict."""
    vocab = len(row)
    banned = {i for name, ids, *_ in edits if name == "ban" for i in ids}
    sets = [{*ids} for name, ids, *_ in edits if name == "allow_only"]
    forced = {args[0] for name, *args in edits if name == "force"}
    left = set(range(vocab)).intersection(*sets) - banned
    if forced:
        left &= forced
    if not left or len(forced) > 1:
        return None
    result = torch.full_like(row, -INF)
    for i in left:
        pairs = [
            pair
            for name, *args in edits
            if name == "bias"
            for pair in zip(args[0], each(args[1], len(args[0])), strict=True)
        ]
        values = [value for token_id, value in pairs if token_id == i]
        bias = torch.tensor(max(-MAX_BIAS, min(MAX_BIAS, sum(values))), dtype=row.dtype)
        result[i] = row[i] + bias if values else row[i]
    for token_id in forced:
        result[token_id] = row[token_id] if masked else 0.0
    return result


def each(values, count):
    """Return the bias of each id, where one may be for all."""
    return [values] * count if isinstance(values, float) else values


def sharing(calls, seed):
    """Return calls with some lists as one object each, as copies of a request have them."""
    kept = {}
    shared = []
    for number, (row, name, *args) in enumerate(calls):
        if args and isinstance(args[0], list) and random.Random(seed - number).random() < 0.5:
            args[0] = kept.setdefault(tuple(args[0]), lasting(args[0]))
        shared.append((row, name, *args))
    return shared


def bits(tensor):
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


@st.composite
def row_edits(draw, vocab):
    token = st.integers(0, vocab - 1)
    tokens = st.lists(token, max_size=vocab)
    value = st.sampled_from([-MAX_BIAS, -2.5, -1 / 64, 0.0, 1 / 64, 3.0, MAX_BIAS])
    pairs = st.lists(st.tuples(token, value), max_size=6)
    one = st.one_of(
        st.tuples(st.just("ban"), tokens),
        st.tuples(st.just("ban"), st.lists(token, max_size=2)),
        st.tuples(st.just("allow_only"), st.lists(token, min_size=1, max_size=vocab)),
        st.tuples(st.just("force"), token),
        pairs.map(lambda items: ("bias", [i for i, _ in items], [v for _, v in items])),
        st.tuples(st.just("bias"), st.lists(token, max_size=6), value),
    )
    return draw(st.lists(one, max_size=4))


@st.composite
def batches(draw):
    vocab = draw(st.sampled_from([1, 2, 3, 7, 32]))
    kinds = draw(st.lists(row_edits(vocab), min_size=1, max_size=6))
    rows = draw(st.integers(1, 64))
    rng = random.Random(draw(st.integers(0, 2**32)))
    # Few rows in detail, repeated, so that examples stay small and batches are large.
    edits = [rng.choice(kinds) for _ in range(rows)]
    masked = [i for i in range(rows) if rng.random() < 0.2]
    return vocab, edits, masked, rng.randrange(2**32)


def laid_out(rows, vocab, layout, dtype):
    """Return a buffer and a view into it of shape ``(rows, vocab)``."""
    if layout == "contiguous":
        wide = torch.zeros(rows, vocab, dtype=dtype)
        return wide, wide
    if layout == "columns":
        wide = torch.zeros(rows, vocab + 5, dtype=dtype)
        return wide, wide[:, 2:-3]
    if layout == "rows":
        wide = torch.zeros(rows * 2, vocab, dtype=dtype)
        return wide, wide[1::2]
    if layout == "transposed":
        wide = torch.zeros(vocab, rows + 1, dtype=dtype)
        return wide, wide.T[1:]
    wide = torch.zeros(rows, vocab * 2 + 1, dtype=dtype)
    return wide, wide[:, 1::2]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "columns", "rows", "transposed", "strided"])
@examples(0.6)
@given(batches())
def test_edits_are_those_of_the_reference_bit_for_bit(layout, dtype, batch):
    vocab, all_edits, masked, seed = batch
    rows = len(all_edits)
    generator = torch.Generator().manual_seed(seed)
    before = (torch.randn(rows, vocab, generator=generator) * 8).to(dtype)
    odd = torch.randint(0, 12, before.shape, generator=generator)
    for i, value in enumerate((-INF, -0.0, INF, math.nan)):
        before[odd == i] = value
    wide, logits = laid_out(rows, vocab, layout, dtype)
    logits.copy_(before)
    around = wide.clone()
    calls = [(row, *call) for row, row_calls in enumerate(all_edits) for call in row_calls]
    random.Random(seed).shuffle(calls)
    # Any part of a row's edits may be declared for good, and is then applied before.
    # Not biases: two of them on one logit are rounded twice.
    for_good = {
        number
        for number, (_, name, *_) in enumerate(calls)
        if name != "bias" and random.Random(seed + number).random() < 0.3
    }
    with (
        patch.object(ids_module, "LONG", 1 + seed % 4),
        patch.object(biases_module, "LONG", 1 + seed % 5),
        patch.object(builder_module, "WIDE", 1 + seed % 6),
        patch.object(compiled_module, "WIDE", 1 + seed % 6),
        patch.object(cpu, "_FEW", 1 + seed % 5),
        patch.object(cpu, "_MANY_ROWS", 1 + seed % 3),
    ):
        calls = sharing(calls, seed)
        now = recorded(vocab, [c for i, c in enumerate(calls) if i not in for_good])
        always = recorded(vocab, [c for i, c in enumerate(calls) if i in for_good])
        persistent, step = PlanBuilder(logits), PlanBuilder(logits)
        compiled = {row: CompiledEdits.of(recording) for row, recording in always.items()}
        for row, one in compiled.items():
            persistent.add_persistent(row, one, has_grammar=row in masked)
        for row, recording in now.items():
            if row not in persistent.conflicts:
                step.add_step(row, recording, compiled.get(row), has_grammar=row in masked)
    found = {**persistent.conflicts, **step.conflicts}
    for builder in (persistent, step):
        Plan(builder, logits).apply(logits)
    for row in step.conflicts:  # the request ends; what was declared for good was applied
        logits[row] = before[row]

    expected, conflicts = before.clone(), set()
    for row, row_calls in enumerate(all_edits):
        result = reference(before[row], row_calls, masked=row in masked)
        if result is None:
            conflicts.add(row)
        else:
            expected[row] = result
    nan = expected.isnan()
    assert torch.equal(logits.isnan(), nan)  # NaN + 1 is some NaN
    assert torch.equal(bits(logits)[~nan], bits(expected)[~nan])
    assert {*found} == conflicts
    logits.copy_(before)
    same = (bits(wide) == bits(around)) | wide.isnan()
    assert same.all(), "written outside of the rows"


def lowest_near_top(row, sigmas):
    """Return the smallest logit that stays, by the definition of top-n-sigma."""
    finite = [value for value in row.tolist() if value != -INF]
    if not finite or not all(map(math.isfinite, finite)):
        return -INF
    return max(finite) - sigmas * statistics.pstdev(finite)


@pytest.mark.parametrize("device", [cpu, cuda])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64], ids=str)
@examples(0.5)
@given(
    drawn=st.tuples(
        st.integers(0, 2**32),
        st.sampled_from([1, 2, 7, 300]),
        st.sampled_from([-900.0, 0.0, 20.0]),
        st.sampled_from([0.0, 0.3, 0.99]),
    )
)
def test_logits_near_the_largest_are_those_of_the_definition(device, dtype, drawn):
    seed, vocab, mean, share = drawn
    generator = torch.Generator().manual_seed(seed)
    before = (torch.randn(6, vocab, generator=generator) * 3 + mean).to(dtype)
    before[torch.rand(before.shape, generator=generator) < share] = -INF
    before[4, 0], before[5, 0] = math.nan, INF
    rows = torch.tensor([5, 0, 1, 4, 3])
    sigmas = torch.rand(5, 1, generator=generator) * 3 + 0.01
    logits = before.clone()

    device.keep_near_top(logits, [NearTop(rows, sigmas)])

    masked = logits == -INF
    assert torch.equal(bits(logits)[~masked], bits(before)[~masked])
    assert torch.equal(logits[2], before[2])
    for row, count in zip(rows.tolist(), sigmas.view(-1).tolist(), strict=True):
        row_before, lowest = before[row].double(), lowest_near_top(before[row], count)
        # float32 has seven digits.
        assert (row_before[masked[row]] <= lowest + 1e-3).all()
        assert not (row_before[~masked[row]] < lowest - 1e-3).any()
        assert lowest == -INF or not masked[row][row_before == row_before.amax()].any()


@pytest.mark.parametrize("device", [cpu, cuda])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_row_is_scaled_by_its_factor_and_the_others_keep_their_bits(device, dtype):
    before = torch.randn(4, 9).to(dtype)
    before[:, 1], before[:, 2] = -INF, -0.0
    logits = before.clone()

    device.scale(logits, torch.tensor([[1.0], [0.3], [1.0], [1000.0]]))

    assert torch.equal(bits(logits)[::2], bits(before)[::2])
    for row, factor in ((1, 0.3), (3, 1000.0)):
        shift = before[row].amax() if dtype == torch.float16 else 0
        expected = ((before[row] - shift).double() * factor).to(dtype)
        assert torch.allclose(logits[row], expected, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("device", [cpu, cuda])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_logit_that_is_scaled_stays_finite(device, dtype):
    logits = torch.tensor([[MAX_BIAS, 1.0, -INF]], dtype=dtype)

    device.scale(logits, torch.tensor([[MAX_FACTOR]]))

    assert logits.softmax(-1).tolist() == [[1.0, 0.0, 0.0]]


@pytest.mark.parametrize("device", [cpu, cuda])
@given(
    rows=st.lists(
        st.lists(st.floats(-65_504, 65_504, width=16) | st.just(-INF), min_size=3, max_size=3),
        min_size=1,
        max_size=3,
    ),
    factors=st.lists(st.floats(1 / MAX_FACTOR, MAX_FACTOR), min_size=3, max_size=3),
)
def test_a_float16_row_is_as_likely_as_its_products_in_float64(device, rows, factors):
    before = torch.tensor([[0.0, *row] for row in rows], dtype=torch.float16)
    own = torch.tensor(factors[: len(rows)], dtype=torch.float32)[:, None]
    logits = before.clone()

    device.scale(logits, own)

    assert not (logits == INF).any()
    assert logits.isfinite().any(1).all()
    expected = (before.double() * own.double()).softmax(-1)
    assert torch.allclose(logits.double().softmax(-1), expected, atol=1e-3)


@pytest.mark.parametrize(("lasting", "now", "product"), [(2, 3, 3), (3, 2, 3), (0.5, 0.25, 0.5)])
def test_the_largest_of_several_factors_counts_also_of_lasting_ones(lasting, now, product):
    class Scales(LogitProcessor):
        def edit(self, request, edits):
            if request.position == 0:
                edits.always().scale(lasting)
            edits.scale(now)

    logits, params = torch.tensor([[1.0, -2.0]]), FakeRequest([1]).custom_params({})
    for _ in range(2):
        assert Scales()(logits.clone(), [params]).tolist() == [[product, -2.0 * product]]
        params["__req__"].append(0)


@pytest.mark.parametrize("device", [cpu, cuda])
def test_edits_of_a_step_and_lasting_ones_measure_the_same_logits(device):
    row = torch.tensor([[5.0, 4.0, 3.0, 0.0, -4.0, -8.0]])
    tight, wide = (NearTop(torch.tensor([0]), torch.tensor([[count]])) for count in (0.5, 1.0))

    for kept in ([tight, wide], [wide, tight]):
        logits = row.clone()
        device.keep_near_top(logits, kept)
        assert logits[0].isfinite().tolist() == (row[0] >= lowest_near_top(row[0], 0.5)).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_pool_gets_the_probability_of_its_tokens_in_each_row_alone(dtype):
    before = (torch.randn(4, 9, generator=torch.Generator().manual_seed(0)) * 4).to(dtype)
    logits = before.clone()

    pool(logits, [[(0, [1, 2], 5), (2, [1, 2], 6), (3, [8, 7, 8], 0)], [(2, [6, 4], 1)]])

    for row, steps in {0: [([1, 2], 5)], 2: [([1, 2], 6), ([6, 4], 1)], 3: [([7, 8], 0)]}.items():
        for ids, into in steps:
            before[row, into] = before[row, ids].float().logsumexp(0)
            before[row, ids] = -INF
    assert torch.equal(logits, before)


def test_a_pool_is_for_one_step():
    edits = Recording(4)
    edits.always().pool([1], 2)

    with pytest.raises(ProcessorFault, match="one step"):
        CompiledEdits.of(edits.standing)


@pytest.mark.parametrize(("ids", "into"), [([4], 0), ([0], 4), ([0, 1], 1)])
def test_a_pool_that_makes_no_sense_is_a_fault(ids, into):
    with pytest.raises(ProcessorFault):
        Recording(4).pool(ids, into)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [[1], [0, 1, 2], [0, 2]])
def test_a_long_list_is_banned_alike_whenever_it_comes_again(dtype, rows):
    vocab = WIDE + 100
    banned = lasting(range(50, 50 + WIDE))
    for _ in range(3):
        before = torch.randn(3, vocab).to(dtype)
        logits = before.clone()
        planned(logits, recorded(vocab, [(row, "ban", banned) for row in rows])).apply(logits)

        expected = before.clone()
        for row in rows:
            expected[row, 50:-50] = -INF
        assert torch.equal(logits, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 15, 16, 20])
@pytest.mark.parametrize("count", [WIDE, 16_384, 16_385])
def test_a_long_list_is_allowed_alike_in_few_and_many_rows(dtype, rows, count):
    allowed = lasting(range(50, 50 + count))
    for _ in range(2):
        before = torch.randn(rows, count + 100).to(dtype)
        logits = before.clone()
        calls = [(row, "allow_only", allowed) for row in range(rows)]
        planned(logits, recorded(count + 100, calls)).apply(logits)

        expected = torch.full_like(before, -INF)
        expected[:, 50:-50] = before[:, 50:-50]
        assert torch.equal(logits, expected)


def test_of_a_long_list_and_what_is_banned_beside_it_a_token_has_to_be_left():
    vocab = WIDE + 2
    banned = lasting(range(WIDE))
    logits = torch.zeros(2, vocab)
    calls = [(0, "ban", banned), (0, "ban", [vocab - 1]), (1, "ban", banned)]
    calls += [(1, "ban", [vocab - 1, vocab - 2])]
    plan = planned(logits, recorded(vocab, calls))

    assert [*plan.conflicts] == [1]
    plan.apply(logits)
    assert logits[0].isfinite().nonzero().flatten().tolist() == [vocab - 2]
    assert logits[1].isfinite().all()


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [2], [0, 1, 3], [0, 2, 4], [1, 2, 3]])
def test_whichever_rows_are_forced_the_others_stay(rows):
    before = torch.randn(5, 6)
    logits = before.clone()
    planned(logits, recorded(6, [(row, "force", row) for row in rows])).apply(logits)

    expected = before.clone()
    for row in rows:
        expected[row] = -INF
        expected[row, row] = 0.0
    assert torch.equal(logits, expected)


def test_one_row_and_several_get_the_same_sums():
    ids = [7, 3, 900, 41]
    before = torch.randn(3, 1_000)
    alone, together = before.clone(), before.clone()
    for row in range(3):
        pool(alone, [[(row, ids, 5)]])
    pool(together, [[(row, ids, 5) for row in range(3)]])

    assert torch.equal(alone, together)
    assert torch.allclose(alone[:, 5], before[:, ids].logsumexp(1))


@given(
    allowed=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=3),
    banned=st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=3),
)
def test_a_recording_knows_when_short_lists_leave_one_token(allowed, banned):
    recording = Recording(10)
    for token_ids in allowed:
        recording.allow_only(token_ids)
    for token_ids in banned:
        recording.ban(token_ids)

    left = {*range(10)}.intersection(*allowed).difference(*banned)
    if allowed and len(left) == 1:
        assert recording.leaves_one
    elif recording.leaves_one:
        # A list of one token says so itself, also where a ban contradicts it.
        assert any(len({*ids}) == 1 for ids in allowed)
