"""Sequences that are never generated."""

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_lp.builtins import BadWordsLogitProcessor
from sglang_lp.testing import FakeRequest, ProcessorContract, run

tokens = st.integers(0, 4)
words = st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=6)


class TestContract(ProcessorContract):
    processor = BadWordsLogitProcessor
    valid_params = (
        {"token_ids": [7], "lengths": [1]},
        {"token_ids": [3, 4, 3, 3, 4, 3, 4], "lengths": [2, 3, 2]},
        {"token_ids": [1, 2, 3, 1, 2, 9, 2], "lengths": [3, 3, 1]},
    )
    invalid_params = (
        ({"token_ids": [1]}, "lengths"),
        ({"lengths": [1]}, "token_ids"),
        ({"token_ids": [], "lengths": []}, "token_ids"),
        ({"token_ids": [1, 2], "lengths": [1]}, "lengths"),
        ({"token_ids": [1, 2], "lengths": [2, 0]}, "lengths"),
        ({"token_ids": [1, 1000], "lengths": [2]}, "token_ids"),
        ({"token_ids": [1] * 4097, "lengths": [4097]}, "token_ids"),
    )


def flat(sequences):
    return {
        "token_ids": [token_id for sequence in sequences for token_id in sequence],
        "lengths": [len(sequence) for sequence in sequences],
    }


def completing(sequences, output):
    """Say by definition which tokens complete a sequence."""
    return {
        sequence[-1]
        for sequence in sequences
        if output[len(output) - len(sequence) + 1 :] == sequence[:-1]
    }


@given(words, st.lists(tokens, max_size=30), st.lists(tokens, max_size=5))
@example([[1, 1, 1, 1], [1, 1, 2], [1, 3]], [1, 1, 1, 1], [])
def test_exactly_the_tokens_that_complete_a_word_are_banned(sequences, output, prompt):
    request = FakeRequest(prompt)
    custom_params = request.custom_params(flat(sequences))
    processor = BadWordsLogitProcessor()

    for position in range(len(output) + 1):
        row = processor(torch.zeros(1, 6), [custom_params])[0]
        banned = {i for i, logit in enumerate(row.tolist()) if logit == -torch.inf}
        assert banned == completing(sequences, output[:position])
        if position < len(output):
            request.append(output[position])


@given(words, st.randoms(use_true_random=False))
def test_no_answer_ever_holds_a_word(sequences, random):
    def model(_token_ids):
        return [random.random() for _ in range(6)]  # 5 is in no word

    output = run(
        BadWordsLogitProcessor, flat(sequences), [1], model, steps=40, vocab_size=6
    ).token_ids

    for sequence in sequences:
        found = (output[i : i + len(sequence)] == sequence for i in range(len(output)))
        assert not any(found)
