"""A phrase after a trigger."""

from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import TriggerPhraseLogitProcessor
from sglang_lp.testing import ProcessorContract, run

tokens = st.integers(0, 2)


class TestContract(ProcessorContract):
    processor = TriggerPhraseLogitProcessor
    valid_params = (
        {"trigger_token_ids": [7], "phrase_token_ids": [8]},
        {"trigger_token_ids": [7, 8, 7], "phrase_token_ids": [7, 9], "max_times": 3},
    )
    invalid_params = (
        ({"trigger_token_ids": [7]}, "phrase_token_ids"),
        ({"trigger_token_ids": [], "phrase_token_ids": [8]}, "trigger_token_ids"),
        ({"trigger_token_ids": [7], "phrase_token_ids": []}, "phrase_token_ids"),
        ({"trigger_token_ids": [7], "phrase_token_ids": [8], "max_times": 0}, "max_times"),
        ({"trigger_token_ids": [7], "phrase_token_ids": [1000]}, "phrase_token_ids"),
    )


def spoken(script, trigger, phrase, max_times, steps):
    """Say by definition what is generated: the model's own tokens and the phrases."""
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
