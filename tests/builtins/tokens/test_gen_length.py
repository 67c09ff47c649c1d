"""A bias on the end that grows with the answer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from logits_processor_zoo import transformers as zoo

from sglang_lp.builtins import GenLengthLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest, ProcessorContract
from sglang_lp.text.vocabulary import vocabulary_of
from support.models.vocabularies import byte_level

TOKENIZER = byte_level(["Is it so? It is. So be it! 好。"] * 9, 280)
TOKENIZER.add_special_tokens(["</think>"])
VOCAB_SIZE = 300
THINK_END = TOKENIZER.token_to_id("</think>")


class TestContract(ProcessorContract):
    processor = GenLengthLogitProcessor
    valid_params = (
        {"bias": 0.5},
        {"bias": -3.5, "power": 0, "eos_token_ids": [7, 8, 7]},
        {"bias": 10_000, "power": 8, "text": "</think>"},
        {"bias": 1, "power": 1, "complete_sentences": True},
    )
    invalid_params = (
        ({}, "bias"),
        ({"bias": 10_001}, "bias"),
        ({"bias": float("nan")}, "bias"),
        ({"bias": 1, "power": -1}, "power"),
        ({"bias": 1, "power": 9}, "power"),
        ({"bias": 1, "eos_token_ids": []}, "eos_token_ids"),
        ({"bias": 1, "eos_token_ids": [1_000_000]}, "eos_token_ids"),
        ({"bias": 1, "text": "a", "eos_token_ids": [1]}, "text"),
        ({"bias": 1, "text": ""}, "text"),
    )
    tokenizer = TOKENIZER
    vocab_size = VOCAB_SIZE
    eos_token_ids = (5,)


def biases(params, output, *, ends=(0,)):
    """Map each token id that is biased after an output to its bias."""
    request = FakeRequest([9], output, tokenizer=TOKENIZER, eos_token_ids=ends)
    logits = torch.zeros(1, VOCAB_SIZE, dtype=torch.float64)
    row = GenLengthLogitProcessor()(logits, [request.custom_params(params)])[0]
    return {i: bias for i, bias in enumerate(row.tolist()) if bias}


@given(
    bias=st.floats(-50, 50),
    power=st.integers(0, 8),
    length=st.integers(0, 400),
    ends=st.lists(st.integers(0, 9), min_size=1, max_size=3),
)
def test_the_bias_grows_with_the_length_up_to_its_limit(bias, power, length, ends):
    found = biases({"bias": bias, "power": power}, [50] * length, ends=ends)

    expected = min(10_000, max(-10_000, bias * (length / 10) ** power))
    assert {*found} == ({*ends} if expected else set())
    assert [*found.values()] == pytest.approx([expected] * len(found))


def test_a_token_that_came_gets_nothing_more():
    params = {"bias": 1.0, "text": "</think>"}

    assert biases(params, [50] * 10) == {THINK_END: 1.0}
    assert biases(params, [*[50] * 5, THINK_END, *[50] * 5]) == {}


@pytest.mark.parametrize(
    "text", ["It is", "so be it.", "Is it so?", "It is\n", "好。", "好", "a. "]
)
def test_only_the_end_of_a_sentence_gets_it_if_asked(text):
    output = TOKENIZER.encode(text).ids
    found = biases({"bias": 1.0, "complete_sentences": True}, output)

    assert bool(found) == text.endswith((".", "?", "\n", "。"))


def test_a_text_of_several_tokens_is_refused():
    served = ServedModel.of(TOKENIZER, VOCAB_SIZE)
    for text in ("It is. So be", "</think>."):
        params = GenLengthLogitProcessor.parse_params({"bias": 1, "text": text})
        with pytest.raises(InvalidParameter, match="one token of the served model"):
            GenLengthLogitProcessor.fit_params(params, served)


@pytest.mark.parametrize("params", [{"text": "."}, {"complete_sentences": True}])
def test_a_server_without_a_tokenizer_is_named(params):
    parsed = GenLengthLogitProcessor.parse_params({"bias": 1, **params})

    with pytest.raises(InvalidParameter, match="no tokenizer"):
        GenLengthLogitProcessor.fit_params(parsed, ServedModel.of(None, VOCAB_SIZE, [1]))


class OfTheZoo:
    """As much of a tokenizer of transformers as the zoo asks for."""

    eos_token_id = 0
    add_prefix_space = False

    def encode(self, text, **_):
        return TOKENIZER.encode(text).ids


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("text", [None, "."])
@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_the_rule_is_the_zoos(power, text, complete):
    theirs = zoo.GenLengthLogitsProcessor(
        OfTheZoo(), 0.75, p=power, complete_sentences=complete, boost_token_str=text
    )
    params = {"bias": 0.75, "power": power, "complete_sentences": complete}
    params |= {} if text is None else {"text": text}
    # A stop in a token of its own, as the zoo looks for it.
    tokens = vocabulary_of(TOKENIZER).tokens
    words = [i for i, token in enumerate(tokens) if token.strip(b" ").isalpha()]
    (stop,), (newline,) = TOKENIZER.encode(".").ids, TOKENIZER.encode("\n").ids
    output = [*words[:6], newline, *words[6:12], stop, *words[12:15]]

    for length in range(len(output) + 1):
        expected = theirs(torch.tensor([[9, *output[:length]]]), torch.zeros(1, VOCAB_SIZE))[0]
        changed = {i: bias for i, bias in enumerate(expected.tolist()) if bias}
        assert biases(params, output[:length]) == pytest.approx(changed)


def test_the_first_id_outside_the_vocabulary_is_refused():
    params = {"bias": 1.0, "eos_token_ids": [VOCAB_SIZE]}
    with pytest.raises(InvalidParameter, match="eos_token_ids"):
        GenLengthLogitProcessor.parse_params(params, VOCAB_SIZE)
