"""Repetition at the end of the output."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_lp.builtins import LoopBreakerLogitProcessor
from sglang_lp.testing import FakeRequest, ProcessorContract, run

tokens = st.integers(0, 2)


class TestContract(ProcessorContract):
    processor = LoopBreakerLogitProcessor
    valid_params = (
        {},
        {"preset": "structured-output"},
        {"preset": "code", "min_pattern_size": 1, "action": "end"},
        {"max_pattern_size": 1, "min_count": 2},
        {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 2, "action": "ban"},
        {"max_pattern_size": 40, "min_count": 3},
    )
    invalid_params = (
        ({"preset": "chat"}, "preset"),
        ({"preset": "structured-output", "min_pattern_size": 21}, "min_pattern_size"),
        ({"min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 4}, "min_count"),
        ({"max_pattern_size": 0, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 1025, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 4, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 4, "min_count": 2, "action": "stop"}, "action"),
    )
    token_ids = (1, 2)


def repeated(output, min_size, max_size, min_count):
    """Say by definition which pattern sizes are repeated at the end of the output."""
    return [
        size
        for size in range(min_size, max_size + 1)
        if len(output) >= size * min_count
        and output[len(output) - size * min_count :] == output[-size:] * min_count
    ]


@given(
    pieces=st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=5), st.integers(1, 5))),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
    min_count=st.integers(2, 4),
)
@example(pieces=[([1], 5)], sizes=[1, 2], min_count=2)
@example(pieces=[([1, 2], 3), ([1], 1)], sizes=[2, 4], min_count=3)
def test_the_tokens_that_go_on_with_a_loop_are_banned(pieces, sizes, min_count):
    output = [token_id for piece, times in pieces for token_id in piece * times]
    params = {
        "min_pattern_size": sizes[0],
        "max_pattern_size": sizes[1],
        "min_count": min_count,
    }
    request = FakeRequest(output)  # a prompt does not count
    custom_params = request.custom_params(params)
    processor = LoopBreakerLogitProcessor()

    for position in range(len(output) + 1):
        row = processor(torch.zeros(1, 4), [custom_params])[0].tolist()
        so_far = output[:position]
        expected = {so_far[-size] for size in repeated(so_far, *sizes, min_count)}
        assert {i for i, logit in enumerate(row) if logit} == expected
        if position < len(output):
            request.append(output[position])


def test_a_model_in_a_loop_gets_out_of_it():
    def model(token_ids):
        return [0, 1, 2, 3] if token_ids[-1] != 3 else [0, 1, 2, 1]

    played = run(
        LoopBreakerLogitProcessor,
        {"max_pattern_size": 2, "min_count": 3},
        [0],
        model,
        steps=12,
        vocab_size=4,
    )

    assert played.token_ids == [3, 2, 3, 2, 3, 2, 2, 3, 2, 3, 2, 3]


def test_a_loop_ends_its_request_and_the_finish_reason_says_so():
    pytest.importorskip("sglang")
    request = FakeRequest([9], [1, 2, 3, 2, 3], served=True)
    params = {"max_pattern_size": 8, "min_count": 3, "action": "end"}
    custom_params = request.custom_params(params)
    processor = LoopBreakerLogitProcessor()

    processor(torch.zeros(1, 4), [custom_params])
    assert request.to_finish is None
    request.append(2)
    processor(torch.zeros(1, 4), [custom_params])
    assert request.to_finish is None
    request.append(3)
    row = processor(torch.zeros(1, 4), [custom_params])

    assert request.to_finish.to_json() == {"type": "stop", "matched": "loop: 2 tokens, 3 times"}
    assert not row.any()


def test_a_request_that_ends_already_keeps_its_reason():
    request = FakeRequest([9], [1, 1], served=True)
    request.to_finish = "an error"
    params = {"max_pattern_size": 8, "min_count": 2, "action": "end"}

    LoopBreakerLogitProcessor()(torch.zeros(1, 4), [request.custom_params(params)])

    assert request.to_finish == "an error"


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({}, (128, 4, 4)),
        ({"action": "end"}, (128, 4, 4)),
        ({"preset": "code"}, (1024, 16, 4)),
        ({"preset": "structured-output", "min_count": 9}, (20, 1, 9)),
        ({"min_pattern_size": 2}, (128, 2, 4)),
        # As it was before there were presets.
        ({"max_pattern_size": 3, "min_count": 2}, (3, 1, 2)),
    ],
)
def test_what_is_left_out_comes_from_the_preset(given, setting):
    params = LoopBreakerLogitProcessor.parse_params(given)

    assert (params.max_pattern_size, params.min_pattern_size, params.min_count) == setting
