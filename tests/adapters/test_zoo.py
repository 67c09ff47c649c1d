"""The processors of NVIDIA's logits-processor-zoo answer as they do in ``generate``."""

import copy

import pytest
from logits_processor_zoo import transformers as zoo

from sglang_lp.adapters import adapt
from sglang_lp.testing import Batch, Played, decode
from support.models.tiny_model import EOS, FREQUENT, VOCAB_SIZE

PROMPTS = [[*range(300, 312)], [*FREQUENT] * 3]
STEPS = 16
CASES = {
    "CiteFromPromptLogitsProcessor": {"boost_factor": 6.0, "conditional_boost_factor": 4.0},
    "ForceLastPhraseLogitsProcessor": {"phrase": "So be it."},
    "GenLengthLogitsProcessor": {"boost_factor": 40.0, "p": 2},
    "MaxTimeLogitsProcessor": {"max_time": 0.0},
    "MultipleChoiceLogitsProcessor": {"choices": ["A", "B"], "delimiter": "."},
    "PreventHallucinationLogitsProcessor": {"minp": 0.9, "tolerate": 2, "phrase": "no idea"},
    "TriggerPhraseLogitsProcessor": {"phrase": "wait", "trigger_time": 1e-9},
}


def test_all_of_the_zoo_is_there():
    assert {*CASES} == {*zoo.__all__}


@pytest.fixture(scope="module")
def tokenizer(transformers):
    """The model's, with an end that the model comes to."""
    tokenizer = copy.deepcopy(transformers.tokenizer)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(FREQUENT[0])
    assert tokenizer.eos_token_id == FREQUENT[0]
    return tokenizer


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_generate(name, transformers, tokenizer):
    foreign, params = getattr(zoo, name), CASES[name]
    expected = []
    for prompt in PROMPTS:
        # In ``generate`` its caller says what the server says here.
        size = {"batch_size": 1} if "batch_size" in foreign.__init__.__annotations__ else {}
        original = foreign(tokenizer=tokenizer, **params, **size)
        expected.append(transformers.generate(original, prompt, STEPS))

    adapted = adapt(foreign, "transformers")
    played = [
        Played(adapted, params, prompt, tokenizer=tokenizer, vocab_size=VOCAB_SIZE)
        for prompt in PROMPTS
    ]

    assert decode(Batch(), transformers.logits, played, STEPS, EOS) == expected
    assert expected != [transformers.generate(lambda _ids, row: row, p, STEPS) for p in PROMPTS]
