"""Processors force the tokens that they announce."""

from __future__ import annotations

import random

import pytest
import torch

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row
from sglang_lp._engine.history.foreseen import foreseen
from sglang_lp.builtins import (
    ChainLogitProcessor,
    ChoiceLogitProcessor,
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    ThinkingBudgetLogitProcessor,
    TriggerPhraseLogitProcessor,
)
from sglang_lp.errors import ProcessorFault
from sglang_lp.links import prepare
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest

VOCAB = 40
THINKS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}
CLOSES = {"closing_token_ids": [10, 11, 10, 12], "thinking_end_token_ids": [3, 2]}
FORCING = [
    (ForcedSequenceLogitProcessor, {"token_ids": [5, 6, 7, 8]}, 4),
    (ForcedSequenceLogitProcessor, {"token_ids": [5, 6], "eos_token_ids": [9]}, 3),
    (ForcedSequenceLogitProcessor, {"token_ids": [5, 6], "eos_token_ids": [9, 4]}, 2),
    (ThinkingBudgetLogitProcessor, {"thinking_budget": 5, **THINKS, "new_line_token_id": 4}, 2),
    (ThinkingBudgetLogitProcessor, {"thinking_budget": 5, **THINKS}, 1),
    (
        ThinkingBudgetLogitProcessor,
        {"thinking_budget": 5, "thinking_start_token_id": 1, **CLOSES},
        6,
    ),
    (TriggerPhraseLogitProcessor, {"trigger_token_ids": [20], "phrase_token_ids": [5, 6, 7]}, 3),
    (
        ChoiceLogitProcessor,
        {"token_ids": [5, 6, 7, 12, 5, 8, 9, 10], "lengths": [4, 4], "eos_token_ids": [11]},
        3,
    ),
    (
        ChainLogitProcessor,
        {
            "chain": ["DisallowedTokensLogitsProcessor", "ForcedSequenceLogitProcessor"],
            "0.token_ids": [30],
            "1.token_ids": [5, 6, 7],
        },
        3,
    ),
]


def decode(processor, params, rng, steps=40):
    """Yield the row of a request before each step, and the token that then comes."""
    servings = prepare(processor(), params, ServedModel.of(None, VOCAB, [0]))
    request = FakeRequest([1, 30], [])
    custom_params = {"__req__": request}
    row = attach_row(custom_params, servings)
    batch = Batch()
    for _ in range(steps):
        logits = torch.tensor([[rng.random() for _ in range(VOCAB)]])
        logits[0, [0, 2]] = -9.0  # it neither ends nor closes by itself
        logits[0, 20] += rng.random() < 0.1
        batch.step(logits, [row], [custom_params])
        token = int(logits.argmax())
        yield row, foreseen(row, 64, VOCAB) if row.leaves_one else [], token
        request.output_ids.append(token)


@pytest.mark.parametrize(("processor", "params", "longest"), FORCING)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_foreseen_comes(processor, params, longest, seed):
    seen = [(forced, token) for _, forced, token in decode(processor, params, random.Random(seed))]
    tokens = [token for _, token in seen]
    for at, (forced, _) in enumerate(seen):
        assert tokens[at : at + len(forced)] == forced[: len(tokens) - at]
    assert max(len(forced) for forced, _ in seen) == longest


def test_what_bans_foresees_nothing():
    steps = decode(DisallowedTokensLogitsProcessor, {"token_ids": [5]}, random.Random(0))
    assert all(not forced for _, forced, _ in steps)


class Lies(LogitProcessor):
    def edit(self, request, edits):
        edits.force(5)

    def foresee(self, request):
        return [5, VOCAB]


def test_a_token_that_the_model_does_not_have_is_a_fault():
    with pytest.raises(
        ProcessorFault, match=rf"foresee\(\): expected token ids from 0 to {VOCAB - 1}"
    ):
        next(decode(Lies, {}, random.Random(0)))
