"""Top-n-sigma: only tokens whose logit is near the largest."""

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.builtins import ChainLogitProcessor, TopNSigmaLogitProcessor
from sglang_lp.testing import FakeRequest, Played, ProcessorContract

VOCAB = 50


class TestContract(ProcessorContract):
    processor = TopNSigmaLogitProcessor
    valid_params = ({}, {"top_n_sigma": 0.5}, {"top_n_sigma": 2})
    invalid_params = (
        ({"top_n_sigma": 0}, "top_n_sigma"),
        ({"top_n_sigma": -1}, "top_n_sigma"),
        ({"top_n_sigma": 101}, "top_n_sigma"),
        ({"top_n_sigma": float("nan")}, "top_n_sigma"),
        ({"top_n_sigma": "1"}, "top_n_sigma"),
    )


def left(row, sigmas):
    """Return the tokens that stay, by the definition."""
    finite = [value for value in row.tolist() if value > -math.inf]
    lowest = max(finite) - sigmas * statistics.pstdev(finite)
    return {i for i, value in enumerate(row.tolist()) if value >= lowest}


def possible(row):
    return {*row.isfinite().nonzero()[:, 0].tolist()}


@given(seed=st.integers(0, 2**32), sigmas=st.floats(0.1, 4), scale=st.sampled_from([0.2, 1, 5]))
def test_the_tokens_that_stay_do_not_depend_on_the_temperature(seed, sigmas, scale):
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(seed))
    params = FakeRequest([1]).custom_params({"top_n_sigma": sigmas})

    rows = TopNSigmaLogitProcessor()(logits / scale, [params])

    assert possible(rows[0]) == left(logits[0], sigmas)
    assert rows[0].argmax() == logits[0].argmax()


@pytest.mark.parametrize("first", [True, False])
def test_in_a_chain_it_comes_last_wherever_it_is_named(first):
    links = [
        ("TopNSigmaLogitProcessor", {"top_n_sigma": 1.5}),
        ("DisallowedTokensLogitsProcessor", {"token_ids": [*range(0, VOCAB, 3)]}),
        (
            "ScheduledBiasLogitProcessor",
            {"token_ids": [4, 7], "bias": 2.0, "final_bias": 3, "end": 4},
        ),
    ]
    links = links if first else links[::-1]
    params = {"chain": [name for name, _ in links]}
    for place, (_, own) in enumerate(links):
        params |= {f"{place}.{name}": value for name, value in own.items()}
    request = FakeRequest([1])
    custom_params = request.custom_params(params)
    processor = ChainLogitProcessor()

    for position in range(6):
        logits = torch.randn(1, VOCAB)
        edited = logits.clone()
        edited[0, ::3] = -math.inf
        if position < 4:
            edited[0, [4, 7]] += 2 + position / 3
        processor(logits, [custom_params])
        assert possible(logits[0]) == left(edited[0], 1.5)
        request.append(1)


@pytest.mark.parametrize("first", [True, False])
def test_a_forced_token_stays_however_unlikely_it_is(first):
    links = ["TopNSigmaLogitProcessor", "ForcedSequenceLogitProcessor"][:: 1 if first else -1]
    place = links.index("ForcedSequenceLogitProcessor")
    params = FakeRequest([1]).custom_params({"chain": links, f"{place}.token_ids": [3]})
    logits = torch.arange(VOCAB).unsqueeze(0).float()

    assert possible(ChainLogitProcessor()(logits, [params])[0]) == {3}


def test_every_node_of_a_draft_and_no_other_request_is_edited():
    width = 3
    played = [
        Played(TopNSigmaLogitProcessor, {"top_n_sigma": count}, [1], vocab_size=VOCAB)
        for count in (1, 2)
    ]
    params = [played[0].custom_params, None, played[1].custom_params]
    drafts = Drafts(width, [[6] * width] * 3, [[1, 2, -1]] * 3, [[-1] * width] * 3)
    batch = Batch()

    for _ in range(3):  # the second step is asleep
        before = torch.randn(3 * width, VOCAB)
        logits = before.clone()
        if not batch.step_asleep(logits, params, width):
            batch.step(logits, rows_of(params), params, drafts=lambda: drafts, width=width)
        for index, row in enumerate(before):
            sigmas = (1, None, 2)[index // width]
            expected = {*range(VOCAB)} if sigmas is None else left(row, sigmas)
            assert possible(logits[index]) == expected
