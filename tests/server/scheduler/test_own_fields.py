"""Nothing is sampled from a row that the fields of its request made NaN, infinite or empty."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.srt.layers.sampler import (
    sampling_from_probs_torch,
    top_k_top_p_min_p_sampling_from_probs_torch,
)

from sglang_lp._engine.apply.sampled import LARGEST, SMALLEST, can_sample
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.edits import MAX_BIAS, MAX_FACTOR
from sglang_lp.links import Serving
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.server.scheduler.own_fields import may_spoil
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest
from support.fakes.gpu import FakeGpu

VOCAB, STEPS = 24, 150
BANNED = [0, 5]
MOST = float(np.finfo(np.float32).max)


class Bans(LogitProcessor):
    needs = History.NONE

    def edit(self, request, edits):
        edits.ban(BANNED)


class BansAtEachStep(LogitProcessor):
    def edit(self, request, edits):
        edits.ban(BANNED)


class Biases(LogitProcessor):
    def edit(self, request, edits):
        edits.ban(BANNED)
        edits.bias([1, 2], [MAX_BIAS, -MAX_BIAS])


class Computes(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        logits[:, BANNED] = -math.inf
        return logits


class InItsRow(LogitProcessor):
    def edit(self, request, edits):
        request.logits[BANNED] = -math.inf


class Idle(LogitProcessor):
    def edit(self, request, edits):
        edits.wake_at(1_000_000)


KINDS = (Bans, BansAtEachStep, Biases, Computes, InItsRow, Idle)


def drawn(rng):
    """Draw sampling fields: ordinary values, and values that SGLang takes by mistake."""
    biases = {}
    if rng.random() < 0.5:
        ids = rng.integers(VOCAB, size=rng.integers(1, VOCAB)).tolist()
        sizes = [1.0, 100.0, 1e26, 1e37, 3e38, 1e39, math.inf, math.nan]
        biases = {str(i): float(rng.choice(sizes)) * rng.choice([-1, 1]) for i in ids}
    if rng.random() < 0.2:
        biases = {str(i): float(rng.choice([-1e39, -3e38])) for i in range(VOCAB)}
    ends = rng.choice([0, 0, 3, VOCAB])
    return SimpleNamespace(
        temperature=float(rng.choice([1.0, 0.7, 1e-6, 1e-30, 1e-45, 1e30, 3e38, 1e39, 1e300])),
        repetition_penalty=float(rng.choice([1.0, 1.3, 2.0, 1e-3, 1e-20, 1e-44, 1e-310])),
        frequency_penalty=float(rng.choice([0.0, 2.0, -2.0])),
        presence_penalty=0.0,
        min_new_tokens=int(rng.choice([0, 3])),
        stop_token_ids={*range(ends)},
        logit_bias=biases or None,
        max_new_tokens=None,
    )


def is_ordinary(sampling):
    """Tell whether float32 has the digits that these fields need."""
    return (
        sampling.temperature >= 0.5
        and sampling.repetition_penalty >= 0.5
        and all(abs(bias) <= 100 for bias in (sampling.logit_bias or {}).values())
    )


def as_sglang_does(logits, sampling, seen):
    """Apply the fields that come before processors to a row, in the row's own type."""
    own = logits.dtype.type
    with np.errstate(all="ignore"):
        logits = logits - own(sampling.frequency_penalty) * seen.astype(logits.dtype)
        penalty = own(sampling.repetition_penalty)
        scaled = np.where(logits > 0, logits / penalty, logits * penalty)
        logits = np.where(seen > 0, scaled, logits)
        if sampling.min_new_tokens:
            logits[[*sampling.stop_token_ids]] = -math.inf
        for token_id, bias in (sampling.logit_bias or {}).items():
            logits[int(token_id)] += own(bias)
    return logits


def expected(kind, logits, sampling, seen):
    """Return the probabilities after everything, by definition; ``None`` if there are none."""

    def held(numbers):
        """Return float64 numbers as float32 can hold them."""
        return np.where(np.abs(numbers) > MOST, np.copysign(math.inf, numbers), numbers)

    if not float(np.finfo(np.float32).tiny) <= sampling.temperature <= MOST:
        return None
    narrow = {
        name: float(np.float32(value)) if isinstance(value, float) else value
        for name, value in vars(sampling).items()
    }
    own = SimpleNamespace(**narrow)
    own.logit_bias = {
        key: float(np.float32(bias)) for key, bias in (sampling.logit_bias or {}).items()
    }
    with np.errstate(all="ignore"):
        row = held(as_sglang_does(logits.astype(np.float64), own, seen))
        if kind is not Idle:
            row[BANNED] = -math.inf
        if kind is Biases:
            row[1] += MAX_BIAS
            row[2] -= MAX_BIAS
        row = held(row / own.temperature)
        if not np.isfinite(row.max()):
            return None
        weights = np.exp(row - row.max())
    return weights / weights.sum()


def served(kind, sampling):
    """Return SGLang's ``custom_params`` of a request."""
    request = FakeRequest([1], served=True)
    request.sampling_params, request.vocab_size = sampling, VOCAB
    params = request.custom_params({})
    host = StockHost(request, may_lag=False)
    attach_row(params, [Serving(kind(), kind.parse_params({}))], host)
    return params


@pytest.mark.parametrize("width", [1, 3])
def test_a_row_is_sampled_as_by_definition_or_ends_its_own_request_with_400(width):
    rng = np.random.default_rng(width)
    torch.manual_seed(width)
    ended = dict.fromkeys(KINDS, 0)
    with np.errstate(all="ignore"):
        for _ in range(STEPS):
            kinds = [KINDS[i] for i in rng.integers(len(KINDS), size=3)]
            if width > 1:  # others need the drafts
                kinds = [Bans if kind is not Idle else Idle for kind in kinds]
            samplings = [drawn(rng) for _ in kinds]
            logits = rng.normal(size=(3, VOCAB)) * rng.choice([1, 50, 1e5])
            logits = logits.astype(np.float32)
            seen = rng.integers(3, size=(3, VOCAB))
            rows = [as_sglang_does(*given) for given in zip(logits, samplings, seen, strict=True)]
            step = torch.from_numpy(np.stack(rows)).repeat_interleave(width, 0)
            asked = [served(*given) for given in zip(kinds, samplings, strict=True)]

            Batch().step(step, rows_of(asked), asked, width=width)

            temperatures = torch.tensor([one.temperature for one in samplings])
            probs = (step / temperatures.repeat_interleave(width)[:, None]).softmax(-1)
            for i, (kind, sampling) in enumerate(zip(kinds, samplings, strict=True)):
                reason = asked[i]["__req__"].to_finish
                wanted = expected(kind, logits[i], sampling, seen[i])
                ended[kind] += wanted is None
                assert (reason is None) == (wanted is not None), (kind, sampling, reason)
                if wanted is None:
                    assert reason.status_code == 400, (kind, sampling, reason.message)
                    continue
                for own in probs[i * width : (i + 1) * width]:
                    assert abs(float(own.sum()) - 1) < 1e-4
                    if is_ordinary(sampling):  # else float32 rounds
                        np.testing.assert_allclose(own.numpy(), wanted, atol=0.02)
                    if kind is not Idle:
                        assert own[BANNED].tolist() == [0.0] * len(BANNED)
                        assert {*sampled(own)}.isdisjoint(BANNED)
    assert all(ended[kind] > 10 for kind in ({Bans, Idle} if width > 1 else KINDS)), ended


def sampled(probs):
    """Sample with SGLang's functions of the pytorch backend, with every filter."""
    many = probs.repeat(8, 1)
    yield from sampling_from_probs_torch(many.clone()).tolist()
    filters = torch.full((8,), 3), torch.full((8,), 1e-30), torch.full((8,), 1.0)
    yield from top_k_top_p_min_p_sampling_from_probs_torch(
        many, *filters, need_min_p_sampling=True, sampling_seed=None, positions=None
    ).tolist()


ORDINARY = {
    "temperature": (0.01, 1.0, 2.0, 100.0),
    "repetition_penalty": (0.1, 1.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "logit_bias": ({"1": -100.0}, {"1": 1e6}, None),
    "min_new_tokens": (0, 5),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in ORDINARY.items() for v in vs])
def test_ordinary_fields_never_make_a_row_be_looked_at(name, value):
    assert not may_spoil(SimpleNamespace(**{name: value}), 150_000)


def test_the_bound_of_the_proof_holds_in_float32():
    highest = (LARGEST + LARGEST + MAX_BIAS * 10) * MAX_FACTOR / SMALLEST
    assert highest < MOST
    assert can_sample(highest, 1.0)
    assert not can_sample(math.nan, 1.0)
    assert not can_sample(1.0, 1e300)


@pytest.mark.parametrize("rows", [1, 32, 256])
@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    ("fields", "waits"),
    [({}, 0), ({"temperature": 0.3, "logit_bias": {"3": 5.0}}, 0), ({"temperature": 1e300}, 1)],
)
def test_a_step_looks_with_a_fixed_number_of_kernels_and_only_at_rows_that_may_be_spoiled(
    rows, width, fields, waits
):
    gpu, batch = FakeGpu(), Batch()
    asked = [served(Bans, SimpleNamespace(**fields)) for _ in range(rows)]
    for params in asked:  # the numbers of the fake could be sampled from
        rows_of([params])[0].host.temperature = 1.0
    for _ in range(2):
        logits = gpu.tensor(rows * width, VOCAB)
        with gpu.counting():
            if not batch.step_asleep(logits, asked, width, has_grammar=False):
                batch.step(logits, rows_of(asked), asked, width=width)

    assert gpu.waits == gpu.to_host == waits
    assert sum(gpu.kernels.values()) == 1 + 5 * waits
