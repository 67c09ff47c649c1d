"""A bias on the tokens of the prompt."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from logits_processor_zoo import transformers as zoo

from sglang_lp.builtins import CiteFromPromptLogitProcessor
from sglang_lp.builtins.prompt import cite_from_prompt
from sglang_lp.testing import FakeRequest, ProcessorContract

VOCAB_SIZE = 40


class TestContract(ProcessorContract):
    processor = CiteFromPromptLogitProcessor
    valid_params = (
        {},
        {"bias": -2.5, "eos_token_ids": []},
        {"bias": 10_000, "eos_token_ids": [7, 8, 7]},
        {"bias": 0},
    )
    invalid_params = (
        ({"bias": 10_001}, "bias"),
        ({"bias": float("nan")}, "bias"),
        ({"eos_token_ids": [1] * 1025}, "eos_token_ids"),
        ({"eos_token_ids": [VOCAB_SIZE]}, "eos_token_ids"),
    )
    vocab_size = VOCAB_SIZE
    eos_token_ids = (5,)


def biases(params, prompt, output=(), ends=(0,)):
    """Map each biased token id to its bias."""
    request = FakeRequest(prompt, output, eos_token_ids=ends)
    logits = torch.zeros(1, VOCAB_SIZE)
    row = CiteFromPromptLogitProcessor()(logits, [request.custom_params(params)])[0]
    return {i: bias for i, bias in enumerate(row.tolist()) if bias}


#: With pad values, which an image has in its prompt.
tokens = st.integers(0, VOCAB_SIZE - 1) | st.just(1_000_003)


@given(
    prompt=st.lists(tokens, min_size=1, max_size=100),
    output=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=9),
    ends=st.none() | st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3),
)
def test_each_token_of_the_prompt_and_each_end_gets_the_bias_once(prompt, output, ends):
    params = {"bias": 1.5} if ends is None else {"bias": 1.5, "eos_token_ids": ends}
    wanted = {*prompt, *([0] if ends is None else ends)}

    assert biases(params, prompt, output) == dict.fromkeys(wanted - {1_000_003}, 1.5)


@given(
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=2, max_size=60),
    bias=st.sampled_from([1.0, -2.5]),
    boost=st.booleans(),
)
def test_the_rule_is_the_zoos(prompt, bias, boost):
    class Tokenizer:
        eos_token_id = 3

    theirs = zoo.CiteFromPromptLogitsProcessor(Tokenizer(), bias, boost_eos=boost)
    params = {"bias": bias} if boost else {"bias": bias, "eos_token_ids": []}
    for output in ([], [4], [4, 9]):
        row = theirs(torch.tensor([[*prompt, *output]]), torch.zeros(1, VOCAB_SIZE))[0]
        expected = {i: added for i, added in enumerate(row.tolist()) if added}
        assert biases(params, prompt, output, ends=(3,)) == expected


def test_what_a_prompt_holds_is_put_together_once_for_all_copies_and_goes_with_them():
    gc.collect()  # requests of other tests
    rows = [FakeRequest([7] * 50 + [8], eos_token_ids=[0]).custom_params({}) for _ in range(3)]
    logits = CiteFromPromptLogitProcessor()(torch.zeros(3, VOCAB_SIZE), rows)

    assert logits.tolist() == [logits[0].tolist()] * 3
    assert len(cite_from_prompt._prompts) == 1
    del rows
    gc.collect()
    assert not cite_from_prompt._prompts


@pytest.mark.parametrize("count", [1, 131_072])
def test_a_long_prompt_is_as_good_as_a_short_one(count):
    assert biases({"eos_token_ids": []}, [7] * count) == {7: 1.0}
