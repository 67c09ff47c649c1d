"""A temperature in place of the request's."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import ChainLogitProcessor, TemperatureLogitProcessor
from sglang_lp.testing import FakeRequest, ProcessorContract

VOCAB = 50


class TestContract(ProcessorContract):
    processor = TemperatureLogitProcessor
    valid_params = ({"temperature": 0.3}, {"temperature": 2})
    invalid_params = (
        ({}, "temperature"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": 101}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 1, "where": "thoughts"}, "where"),
    )


def edited(logits, params, processor=TemperatureLogitProcessor, **sampling):
    """Return the logits that a server divides by the temperature of the request."""
    request = FakeRequest([1])
    request.sampling_params = SimpleNamespace(**sampling)
    return processor()(logits.clone(), [request.custom_params(params)])


@given(requested=st.floats(0.01, 2), temperature=st.floats(0.1, 10))
def test_tokens_are_as_likely_as_at_this_temperature_whatever_the_request_has(
    requested, temperature
):
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))

    row = edited(logits, {"temperature": temperature}, temperature=requested, top_k=-1)

    probabilities = (row / requested).softmax(-1)
    assert torch.allclose(probabilities, (logits / temperature).softmax(-1), atol=1e-5)


def test_a_greedy_request_keeps_its_logits_and_so_its_logprobs():
    logits = torch.randn(1, VOCAB)

    # SGLang takes a temperature of 0 as these two.
    row = edited(logits, {"temperature": 0.3}, temperature=1.0, top_k=1)

    assert torch.equal(row, logits)


@pytest.mark.parametrize(
    ("requested", "temperature", "factor"),
    [(10, 0.01, 1000), (11, 0.01, 1000), (0.1, 100, 0.001), (0.01, 100, 0.001)],
)
def test_a_factor_has_bounds(requested, temperature, factor):
    logits = torch.randn(1, VOCAB)

    row = edited(logits, {"temperature": temperature}, temperature=requested, top_k=-1)

    assert torch.allclose(row, logits * factor)


@pytest.mark.parametrize("given", [{"temperature": 1.7}, {"temperature": 1.0, "top_k": 1}])
def test_beams_which_have_no_temperature_are_scored_at_it(given):
    logits = torch.randn(1, VOCAB)

    row = edited(logits, {"temperature": 0.5}, beam_width=4, **given)

    assert torch.equal(row, logits / 0.5)


@pytest.mark.parametrize("order", [(0.5, 2.0), (2.0, 0.5)])
def test_in_a_chain_the_lowest_temperature_counts(order):
    logits = torch.randn(1, VOCAB)
    params = {"chain": ["TemperatureLogitProcessor"] * 2}
    params |= {f"{place}.temperature": one for place, one in enumerate(order)}

    row = edited(logits, params, ChainLogitProcessor, temperature=1.0, top_k=-1)

    assert torch.equal(row, logits / 0.5)
