"""Nothing but the chosen tokens."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import AllowedTokensLogitProcessor
from sglang_lp.testing import FakeRequest, ProcessorContract


class TestContract(ProcessorContract):
    processor = AllowedTokensLogitProcessor
    valid_params = ({"token_ids": [7]}, {"token_ids": [3, 3, 999]})
    invalid_params = (
        ({}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": [1000]}, "token_ids"),
        ({"token_ids": [-1]}, "token_ids"),
    )


@given(st.lists(st.lists(st.integers(0, 9), min_size=1), min_size=1, max_size=4))
def test_only_the_chosen_tokens_keep_their_logits(chosen):
    logits = torch.randn(len(chosen), 10)
    before = logits.clone()

    AllowedTokensLogitProcessor()(
        logits, [FakeRequest([1]).custom_params({"token_ids": ids}) for ids in chosen]
    )

    for row, old, ids in zip(logits, before, chosen, strict=True):
        for token_id in range(10):
            expected = old[token_id] if token_id in ids else -torch.inf
            assert row[token_id] == expected
