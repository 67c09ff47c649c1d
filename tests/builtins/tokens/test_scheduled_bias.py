"""A bias that depends on the position."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import ScheduledBiasLogitProcessor
from sglang_lp.testing import FakeRequest, ProcessorContract


class TestContract(ProcessorContract):
    processor = ScheduledBiasLogitProcessor
    valid_params = (
        {"token_ids": [3, 5]},
        {"token_ids": [3], "bias": -2.5, "start": 2},
        {"token_ids": [3, 7], "bias": 0, "final_bias": 8, "start": 1, "end": 41},
        {"token_ids": [3], "bias": 1, "final_bias": 2, "start": 2, "end": 3},
    )
    invalid_params = (
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [3, 3]}, "token_ids"),
        ({"token_ids": [*range(1025)]}, "token_ids"),
        ({"token_ids": [1000]}, "token_ids"),
        ({"token_ids": [3], "bias": 10001}, "bias"),
        ({"token_ids": [3], "bias": float("nan")}, "bias"),
        ({"token_ids": [3], "start": 5, "end": 5}, "end"),
        ({"token_ids": [3], "final_bias": 1, "end": 5}, "final_bias"),
        ({"token_ids": [3], "bias": 1, "final_bias": 1}, "final_bias"),
    )


def at_each_position(params, steps):
    """Return the row of zeros after the edit at each position of one request."""
    request = FakeRequest([1])
    custom_params = request.custom_params(params)
    processor = ScheduledBiasLogitProcessor()
    rows = []
    for _ in range(steps):
        rows.append(processor(torch.zeros(1, 4), [custom_params])[0].tolist())
        request.append(0)
    return rows


@given(
    start=st.integers(0, 6),
    length=st.none() | st.integers(1, 6),
    bias=st.none() | st.floats(-50, 50),
    final_bias=st.none() | st.floats(-50, 50),
)
def test_each_position_has_the_bias_of_its_schedule(start, length, bias, final_bias):
    end = None if length is None else start + length
    params = {"token_ids": [2, 1], "bias": bias, "start": start, "end": end}
    ramp = None not in (bias, final_bias, end) and length > 1
    if ramp:
        params["final_bias"] = final_bias

    for position, row in enumerate(at_each_position(params, 14)):
        inside = position >= start and (end is None or position < end)
        expected = bias
        if ramp and inside:
            expected = torch.linspace(bias, final_bias, length, dtype=torch.float64)
            expected = expected[position - start].item()
        if not inside:
            expected = 0.0
        elif bias is None:
            expected = -torch.inf
        assert row == pytest.approx([0.0, expected, expected, 0.0], rel=1e-5, abs=1e-5)


def test_a_ramp_starts_and_ends_on_its_two_biases():
    rows = at_each_position({"token_ids": [0], "bias": -1, "final_bias": 3, "end": 5}, 6)

    assert [row[0] for row in rows] == [-1, 0, 1, 2, 3, 0]
