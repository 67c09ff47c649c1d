"""Schemes mark and find as Transformers does, on random rows and histories."""

import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    SynthIDTextWatermarkLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    WatermarkDetector,
    WatermarkLogitsProcessor,
)

from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.testing import FakeRequest
from sglang_lp.watermark.green_lists import is_green
from sglang_lp.watermark.keys import GreenKey, TournamentKey
from sglang_lp.watermark.reading import scheme_of
from sglang_lp.watermark.tournament import CANDIDATES
from support.watermarks import (
    GREEN,
    GREEN_SCHEME,
    SELF,
    SELF_SCHEME,
    TOURNAMENT,
    TOURNAMENT_SCHEME,
    GreenMarks,
    SelfMarks,
    TournamentMarks,
)

VOCAB = 120
BIASED, SELF_BIASED = (WatermarkLogitsProcessor(VOCAB, "cpu", **one) for one in (GREEN, SELF))
seeds = st.integers(0, 2**32)


def rows(seed, count=3, vocab=VOCAB):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(count, vocab, generator=generator)


def edited(processor, histories, logits, **sampling):
    """Return the logits after the processor, one row for each history."""
    params = []
    for history in histories:
        request = FakeRequest([1], [*history])
        request.sampling_params = SimpleNamespace(**{"temperature": 1.0, "top_k": -1, **sampling})
        params.append(request.custom_params({}))
    return processor()(logits.clone(), params)


@given(seed=seeds, token_id=st.integers(0, 199), size=st.integers(1, 199))
def test_a_token_is_green_as_in_a_whole_shuffle(seed, token_id, size):
    whole = torch.randperm(200, generator=torch.Generator().manual_seed(seed))

    assert is_green(seed, token_id, 200, size) == (token_id in whole[:size].tolist())


@given(
    seed=seeds,
    histories=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8), min_size=3, max_size=3
    ),
)
def test_green_lists_that_the_token_before_seeds(seed, histories):
    logits = rows(seed)
    expected = [
        BIASED(torch.tensor([history]), row[None])[0]
        for history, row in zip(histories, logits, strict=True)
    ]

    assert torch.equal(edited(GreenMarks, histories, logits), torch.stack(expected))


@settings(max_examples=20)
@given(seed=seeds, history=st.lists(st.integers(0, VOCAB - 1), min_size=3, max_size=8))
def test_green_lists_that_the_token_itself_seeds(seed, history):
    logits = rows(seed, 1)

    expected = SELF_BIASED(torch.tensor([history]), logits)
    assert torch.equal(edited(SelfMarks, [history], logits), expected)


@given(seed=seeds, temperature=st.floats(0.2, 3))
def test_a_bias_is_as_strong_at_every_temperature(seed, temperature):
    logits = rows(seed, 1)
    own = edited(GreenMarks, [[5, 6]], logits, temperature=temperature) / temperature

    assert torch.allclose(own, BIASED(torch.tensor([[5, 6]]), logits / temperature), atol=1e-4)


def synthid(history, scores):
    """Return Transformers' logprobs after a history."""
    theirs = SynthIDTextWatermarkLogitsProcessor(
        **TOURNAMENT, device="cpu", skip_first_ngram_calls=True
    )
    for end in range(len(history) + 1):
        done = theirs(torch.tensor([[0, *history[:end]]]), scores)
    return done.log_softmax(-1)


@settings(max_examples=50)
@given(
    seed=seeds,
    history=st.lists(st.integers(0, 3), max_size=40),
    temperature=st.floats(0.3, 2),
)
def test_tournaments_after_any_history_with_contexts_that_come_again(seed, history, temperature):
    logits = rows(seed, 1)
    own = edited(TournamentMarks, [history], logits, temperature=temperature) / temperature

    expected = synthid(history, logits / temperature)
    assert torch.allclose(own.softmax(-1), expected.exp(), atol=1e-5)


@given(seed=seeds, history=st.lists(st.integers(0, VOCAB - 1), min_size=4, max_size=4))
@settings(max_examples=20)
@pytest.mark.parametrize(
    ("cut", "warper"),
    [
        ({"top_k": 10}, TopKLogitsWarper(10)),
        ({"top_p": 0.7}, TopPLogitsWarper(0.7)),
        ({"min_p": 0.1}, MinPLogitsWarper(0.1)),
    ],
)
def test_the_tournament_is_between_tokens_that_may_be_sampled(cut, warper, seed, history):
    """The order of Transformers: temperature, the cuts, and then the watermark."""
    logits = rows(seed, 1)
    own = edited(TournamentMarks, [history], logits, temperature=1.3, **cut) / 1.3

    expected = synthid(history, warper(None, TemperatureLogitsWarper(1.3)(None, logits)))
    assert torch.allclose(own.softmax(-1), expected.exp(), atol=1e-5)


def test_over_many_contexts_the_probabilities_are_those_of_the_model():
    rng, logits = random.Random(0), rows(3, 1, 20)
    histories = [[rng.randrange(20) for _ in range(4)] for _ in range(3000)]

    own = edited(TournamentMarks, histories, logits.expand(3000, -1))

    assert torch.allclose(own.softmax(-1).mean(0), logits[0].softmax(-1), atol=0.02)


def test_tokens_outside_of_the_tournament_keep_their_probability():
    vocab = 4 * CANDIDATES
    logits = rows(1, 1, vocab) / 9
    own = edited(TournamentMarks, [[1, 2, 3, 4]], logits)
    likely = logits[0].topk(CANDIDATES).indices
    others = torch.ones(vocab, dtype=torch.bool).index_fill(0, likely, value=False)

    assert torch.equal(own[0][others], logits[0][others])
    assert torch.allclose(own[0].softmax(-1)[others], logits[0].softmax(-1)[others], atol=1e-6)
    assert not torch.equal(own, logits)


@pytest.mark.parametrize("processor", [GreenMarks, TournamentMarks])
def test_greedy_answers_change_by_a_bias_only(processor):
    logits = rows(0, 1)
    own = edited(processor, [[1, 2, 3, 4]], logits, top_k=1)

    assert torch.equal(own, logits) == (processor is TournamentMarks)


@pytest.mark.parametrize("processor", [GreenMarks, TournamentMarks])
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_row_without_probabilities_does_not_change_for_a_tournament(processor, broken):
    logits = rows(0, 2)
    logits[0] = broken
    own = edited(processor, [[1, 2, 3, 4]] * 2, logits)

    assert torch.equal(own[0].isnan(), logits[0].isnan())
    assert not torch.equal(own[1], logits[1])
    if processor is TournamentMarks and not math.isnan(broken):
        assert torch.equal(own[0], logits[0])


@given(tokens=st.lists(st.integers(0, VOCAB - 1), min_size=5, max_size=60))
@settings(max_examples=30)
def test_green_tokens_are_counted_as_by_transformers(tokens):
    model = SimpleNamespace(bos_token_id=-1, vocab_size=VOCAB, is_encoder_decoder=False)
    theirs = WatermarkDetector(model, "cpu", GREEN, ignore_repeated_ngrams=True)
    judged = theirs(torch.tensor([tokens]), return_dict=True)
    own = GREEN_SCHEME.detect(tokens, VOCAB)

    assert own.scored == judged.num_tokens_scored
    assert round(own.score * own.scored) == judged.num_green_tokens
    assert own.z == pytest.approx(float(judged.z_score[0]))  # 0.25 of 120 is whole


@given(window=st.lists(st.integers(0, VOCAB - 1), min_size=3, max_size=3))
def test_a_token_that_seeds_its_own_list_is_judged_as_by_transformers(window):
    green = window[-1] in SELF_BIASED._get_greenlist_ids(torch.tensor(window)).tolist()

    assert SELF_SCHEME.green(window[:-1], window[-1:], VOCAB) == window[-1:] * green


@given(tokens=st.lists(st.integers(0, 2), min_size=6, max_size=60))
def test_g_values_and_repeats_are_those_of_transformers(tokens):
    theirs = SynthIDTextWatermarkLogitsProcessor(**TOURNAMENT, device="cpu")
    values = theirs.compute_g_values(torch.tensor([tokens]))[0]
    seen = theirs.compute_context_repetition_mask(torch.tensor([tokens]))[0]
    contexts = [tokens[at - 4 : at] for at in range(4, len(tokens))]

    assert np.array_equal(TOURNAMENT_SCHEME.g_values(contexts, tokens[4:]), values.numpy())
    assert TOURNAMENT_SCHEME.detect(tokens, None).scored == int(seen.sum())


def test_a_context_that_left_the_window_marks_again():
    key = TournamentKey(**{**TOURNAMENT, "keys": (7, 11, 13), "context_history_size": 3})
    tokens = [1, 1, 1, 1, 2, 3, 4, 1, 1, 1, 1, 5]
    theirs = SynthIDTextWatermarkLogitsProcessor(
        **{**TOURNAMENT, "keys": [7, 11, 13], "context_history_size": 3}, device="cpu"
    )
    seen = theirs.compute_context_repetition_mask(torch.tensor([tokens]))[0]

    assert seen.all()
    assert scheme_of(key).detect(tokens, None).scored == len(tokens) - 4


@pytest.mark.parametrize("first", [True, False])
def test_it_comes_after_all_other_edits_wherever_a_chain_names_it(first):
    logits = rows(5, 1)
    links = [
        ("WatermarkLogitProcessor", {}),
        ("DisallowedTokensLogitsProcessor", {"token_ids": [*range(0, VOCAB, 2)]}),
        ("TemperatureLogitProcessor", {"temperature": 0.6}),
    ]
    links = links if first else links[::-1]

    class Chain(ChainLogitProcessor):
        @staticmethod
        def _resolve(name):
            from sglang_lp import builtins

            return TournamentMarks if name == "WatermarkLogitProcessor" else getattr(builtins, name)

    params = {"chain": [name for name, _ in links]}
    params |= {
        f"{at}.{key}": value for at, (_, own) in enumerate(links) for key, value in own.items()
    }
    request = FakeRequest([1], [1, 2, 3, 4])
    request.sampling_params = SimpleNamespace(temperature=1.5, top_k=-1)
    own = Chain()(logits.clone(), [request.custom_params(params)]) / 1.5

    logits[:, ::2] = -math.inf
    expected = synthid([1, 2, 3, 4], logits / 0.6)
    assert torch.allclose(own.softmax(-1), expected.exp(), atol=1e-5)


def test_a_key_of_another_length_is_another_watermark():
    assert scheme_of(GreenKey(hashing_key=3)).digest != scheme_of(GreenKey(hashing_key=4)).digest
