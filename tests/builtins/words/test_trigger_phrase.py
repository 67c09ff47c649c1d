"""A phrase after a trigger."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import TriggerPhraseLogitProcessor
from sglang_lp.testing import FakeRequest, ProcessorContract, run

tokens = st.integers(0, 2)


class TestContract(ProcessorContract):
    processor = TriggerPhraseLogitProcessor
    valid_params = (
        {"trigger_token_ids": [7], "phrase_token_ids": [8]},
        {"trigger_token_ids": [7, 8, 7], "phrase_token_ids": [7, 9], "max_times": 3},
        {"before_token_ids": [7], "phrase_token_ids": [8]},
        {"before_token_ids": [7, 8], "phrase_token_ids": [9, 7, 9]},
    )
    invalid_params = (
        ({"trigger_token_ids": [7]}, "phrase_token_ids"),
        ({"trigger_token_ids": [], "phrase_token_ids": [8]}, "trigger_token_ids"),
        ({"trigger_token_ids": [7], "phrase_token_ids": []}, "phrase_token_ids"),
        ({"trigger_token_ids": [7], "phrase_token_ids": [8], "max_times": 0}, "max_times"),
        ({"trigger_token_ids": [7], "phrase_token_ids": [1000]}, "phrase_token_ids"),
        ({"phrase_token_ids": [8], "max_times": 2}, "max_times"),
        ({"phrase_token_ids": [8], "trigger": ""}, "trigger"),
        ({"phrase_token_ids": [8], "phrase": "a"}, "phrase"),
        (
            {"phrase_token_ids": [8], "trigger_token_ids": [7], "before_token_ids": [7]},
            "trigger_token_ids",
        ),
        ({"phrase_token_ids": [8], "before_token_ids": [7, 8]}, "before_token_ids"),
        ({"phrase_token_ids": [8], "before_token_ids": [7] * 1025}, "before_token_ids"),
        ({"phrase_token_ids": [8], "trigger_token_ids": [7] * 4097}, "trigger_token_ids"),
        ({"phrase_token_ids": [8], "before_token_ids": [7], "max_times": 2}, "max_times"),
    )


def spoken(script, trigger, phrase, max_times, steps):
    """Return the generated tokens by definition: the model's own tokens and the phrases."""
    output, own = [], []
    while len(output) < steps:
        token_id = script[len(output)] if len(output) < len(script) else 0
        output.append(token_id)
        own.append(token_id)
        if max_times and own[-len(trigger) :] == trigger:
            output += phrase
            own = []
            max_times -= 1
    return output[:steps]


@given(
    script=st.lists(tokens, max_size=30),
    trigger=st.lists(tokens, min_size=1, max_size=3),
    phrase=st.lists(tokens, min_size=1, max_size=3),
    max_times=st.integers(1, 4),
)
def test_the_phrase_follows_every_trigger_and_nothing_else(script, trigger, phrase, max_times):
    params = {
        "trigger_token_ids": trigger,
        "phrase_token_ids": phrase,
        "max_times": max_times,
    }

    played = run(TriggerPhraseLogitProcessor, params, trigger, script, steps=40, vocab_size=4)

    assert played.token_ids == spoken(script, trigger, phrase, max_times, 40)


@pytest.mark.parametrize("ends", [[2, 4], [4, 2, 2]])
def test_the_phrase_begins_with_the_probability_of_an_end(ends):
    params = {"before_token_ids": ends, "phrase_token_ids": [3, 1]}
    logits = torch.tensor([[0.5, 1.0, 2.0, 7.0, 1.5, -1.0]])
    unlike = logits.clone()
    unlike[0, 3] = -torch.inf  # the model's own wish for that token does not count
    expected = unlike.softmax(-1)[0].tolist()

    row = TriggerPhraseLogitProcessor()(logits, [FakeRequest([1]).custom_params(params)])[0]

    assert row.softmax(-1).tolist() == pytest.approx(
        [expected[0], expected[1], 0, expected[2] + expected[4], 0, expected[5]]
    )


@pytest.mark.parametrize("phrase", [[3], [3, 1], [3, 3, 9, 3]])
def test_an_answer_ends_only_after_the_phrase(phrase):
    end = 9

    def model(token_ids):
        logits = [0.0] * 10
        logits[end if len(token_ids) > 5 else 3] = 5.0  # likes the phrase's first token, too
        logits[4] = 4.0
        return logits

    played = run(
        TriggerPhraseLogitProcessor,
        {"before_token_ids": [end], "phrase_token_ids": phrase},
        [1],
        model,
        steps=10 + len(phrase),
        vocab_size=10,
    )

    assert played.token_ids == [4] * 5 + phrase + [end] * 5
