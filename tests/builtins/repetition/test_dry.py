"""DRY, compared with a reference that follows llama.cpp's documentation, position by position."""

import gc

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_lp.builtins import DRYLogitProcessor
from sglang_lp.builtins.repetition import dry as dry_module
from sglang_lp.testing import FakeRequest, ProcessorContract, run

tokens = st.integers(0, 3)


class TestContract(ProcessorContract):
    processor = DRYLogitProcessor
    valid_params = (
        {},
        {"dry_multiplier": 2, "dry_base": 1, "dry_allowed_length": 1, "dry_penalty_last_n": 2},
        {"dry_base": 100.0, "dry_penalty_last_n": 16, "dry_sequence_breaker_ids": [4, 5]},
    )
    invalid_params = (
        ({"dry_multiplier": 0}, "dry_multiplier"),
        ({"dry_multiplier": float("inf")}, "dry_multiplier"),
        ({"dry_base": 0.9}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_allowed_length": 65}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -1}, "dry_penalty_last_n"),
        ({"dry_penalty_last_n": 2049}, "dry_penalty_last_n"),
        ({"dry_penalty_last_n": 3, "dry_allowed_length": 3}, "dry_penalty_last_n"),
        ({"dry_sequence_breaker_ids": [1000]}, "dry_sequence_breaker_ids"),
    )
    token_ids = (1, 2)


def penalties(history, params):
    """Say by definition which tokens are penalised, and how much."""
    multiplier, base, allowed_length, last_n, breakers = params.values()
    window = history[-last_n:]
    limit = next((i for i, token in enumerate(reversed(window)) if token in breakers), len(window))
    longest = {}
    for end in range(1, len(window)):  # window[end] follows what ends before it
        length = 0
        while length < min(end, limit) and window[end - 1 - length] == window[-1 - length]:
            length += 1
        if length >= allowed_length and window[end] not in breakers:
            longest[window[end]] = max(length, longest.get(window[end], 0))
    return {
        token: min(10_000, multiplier * base ** (length - allowed_length))
        for token, length in longest.items()
    }


def dry(multiplier, base, allowed_length, more, breakers):
    return {
        "dry_multiplier": multiplier,
        "dry_base": base,
        "dry_allowed_length": allowed_length,
        "dry_penalty_last_n": allowed_length + more,
        "dry_sequence_breaker_ids": [*breakers],
    }


@given(
    pieces=st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=6), st.integers(1, 4))),
    prompt_length=st.integers(0, 40),
    params=st.builds(
        dry,
        st.floats(0.01, 100),
        st.floats(1, 3),
        st.integers(1, 4),
        st.integers(1, 20),
        st.sets(tokens, max_size=2),
    ),
)
@example([([1], 40)], 5, dry(1.0, 2.0, 1, 8, ()))
@example([([1, 2, 3], 10), ([0], 1), ([1, 2], 1)], 5, dry(1.0, 2.0, 2, 30, (0,)))
@example([([1], 4)] * 12, 0, dry(1.0, 1.0, 2, 1, ()))
@pytest.mark.parametrize("pushed", [0, 64])  # more tokens at once are read anew
def test_every_token_gets_the_penalty_of_its_longest_repetition(
    pushed, pieces, prompt_length, params
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dry_module, "_FEW", pushed)
        check_penalties(pieces, prompt_length, params)


def check_penalties(pieces, prompt_length, params):
    history = [token_id for piece, times in pieces for token_id in piece * times]
    request = FakeRequest(history[:prompt_length])
    custom_params = request.custom_params(params)
    processor = DRYLogitProcessor()

    for length in range(min(prompt_length, len(history)), len(history) + 1):
        row = processor(torch.zeros(1, 5, dtype=torch.float64), [custom_params])[0].tolist()
        expected = penalties(history[:length], params)
        assert {i: -logit for i, logit in enumerate(row) if logit} == pytest.approx(expected)
        if length < len(history):
            request.append(history[length])


def test_the_example_in_the_documentation_of_llama_cpp():
    a, b, c, y = 0, 1, 2, 3
    request = FakeRequest([a, b, c, c, b, c, y, a, b, c])
    params = {"dry_multiplier": 1, "dry_base": 2, "dry_allowed_length": 1}

    row = DRYLogitProcessor()(torch.zeros(1, 4), [request.custom_params(params)])[0]

    # Repetitions of 3, 1 and 2 tokens would go on with c, b and y.
    assert row.tolist() == [0, -1, -4, -2]


def test_a_repetition_as_long_as_the_window_has_a_finite_penalty():
    played = run(
        DRYLogitProcessor,
        {"dry_base": 100, "dry_penalty_last_n": 2048},
        [7] * 2048,
        [7],
        steps=1,
        vocab_size=8,
    )

    assert played.logits[0][7] == 1 - 10_000


def test_pad_values_of_image_prompts_are_no_tokens():
    prompt_ids = [1, 1_000_005, 1_000_005, 1, 1_000_005, 1, 1_000_005]
    request = FakeRequest(prompt_ids)

    row = DRYLogitProcessor()(torch.zeros(1, 8), [request.custom_params({})])[0]

    assert {i for i, logit in enumerate(row.tolist()) if logit} == {1}


def test_copies_of_a_request_read_their_prompt_once_and_keep_nothing_of_it():
    gc.collect()  # requests of other tests
    requests = [FakeRequest([1, 2, 1, 2]) for _ in range(2)]
    all_params = [request.custom_params({}) for request in requests]
    processor = DRYLogitProcessor()
    processor(torch.zeros(2, 4), all_params)
    assert len(dry_module._ends) == 1

    requests[0].append(1)
    rows = processor(torch.zeros(2, 4), all_params)
    assert rows[0].any()
    assert rows[0].tolist() != rows[1].tolist(), "each goes on by itself"

    all_params.clear()
    requests.clear()
    gc.collect()
    assert not dry_module._ends
