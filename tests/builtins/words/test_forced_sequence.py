"""Sequences with several tokens that may end the answer."""

import torch

from sglang_lp.builtins import ForcedSequenceLogitProcessor
from sglang_lp.testing import FakeRequest


def test_after_the_sequence_any_of_the_end_tokens_may_come():
    params = {"token_ids": [1, 2], "eos_token_ids": [6, 8]}
    requests = [FakeRequest([5], [1, 2][:count]).custom_params(params) for count in range(3)]

    rows = ForcedSequenceLogitProcessor()(torch.zeros(3, 10), requests).tolist()

    possible = [{i for i, logit in enumerate(row) if logit == 0} for row in rows]
    assert possible == [{1}, {2}, {6, 8}]
