"""Tokens that a fork reads along a draft do not change the original state."""

import pickle
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp import builtins
from sglang_lp.errors import Contradiction
from sglang_lp.links import prepare
from sglang_lp.request import Request
from sglang_lp.served_model import ServedModel

CASES = [
    (
        builtins.TriggerPhraseLogitProcessor,
        {"trigger_token_ids": [3, 4], "phrase_token_ids": [5, 6], "max_times": 9},
    ),
    (
        builtins.ChoiceLogitProcessor,
        {"token_ids": [3, 4, 3, 5, 6], "lengths": [2, 3], "eos_token_ids": [7]},
    ),
    (
        builtins.ThinkingBudgetLogitProcessor,
        {
            "thinking_budget": 5,
            "thinking_start_token_ids": [1, 2],
            "thinking_end_token_ids": [3, 4],
            "new_line_token_id": 5,
        },
    ),
    (builtins.DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 2, "window_size": 10}),
]
TOKENS = st.lists(st.integers(1, 7), max_size=12)


@pytest.mark.parametrize("case", CASES)
@given(TOKENS, TOKENS, TOKENS)
def test_a_fork_goes_on_by_itself(case, prompt, output, draft):
    ((processor, params, *_),) = prepare(case[0](), case[1], ServedModel(vocab_size=100))
    request = Request(params)
    request.prompt_ids, request.output_ids = array("q", prompt), array("q")
    request.state = state = processor.start(request)

    def feed(token_ids):
        try:
            for token_id in token_ids:
                request.output_ids.append(token_id)
                processor.advance(request, [token_id])
        except Contradiction:  # the tokens begin no choice
            pass

    feed(output)
    request.state = processor.fork(request)
    before = pickle.dumps(state)
    feed(draft)
    assert pickle.dumps(state) == before
