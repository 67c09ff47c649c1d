"""No early end."""

import pytest

from sglang_lp.builtins import MinLengthLogitProcessor
from sglang_lp.testing import ProcessorContract, run

A, B, END = 5, 6, 9


class TestContract(ProcessorContract):
    processor = MinLengthLogitProcessor
    valid_params = (
        {"min_tokens": 1, "eos_token_ids": [3]},
        {"min_tokens": 30, "eos_token_ids": [3, 999]},
    )
    invalid_params = (
        ({"min_tokens": 0, "eos_token_ids": [3]}, "min_tokens"),
        ({"min_tokens": 1, "eos_token_ids": []}, "eos_token_ids"),
        ({"min_tokens": 1, "eos_token_ids": [*range(1025)]}, "eos_token_ids"),
        ({"eos_token_ids": [3]}, "min_tokens"),
        ({"min_tokens": 1, "eos_token_ids": [1000]}, "eos_token_ids"),
    )


@pytest.mark.parametrize("min_tokens", [1, 2, 5, 8])
def test_a_model_that_wants_to_end_at_once_ends_after_exactly_so_many_tokens(min_tokens):
    def eager(_token_ids):
        return [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]  # likes END best and 8 next

    played = run(
        MinLengthLogitProcessor,
        {"min_tokens": min_tokens, "eos_token_ids": [END]},
        [1, 2],
        eager,
        steps=10,
        vocab_size=10,
    )

    assert played.token_ids == [8] * min_tokens + [END] * (10 - min_tokens)
