"""Scope and presets of the n-gram rule; its bans are tested in test_ngram_window.py."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import DeepseekOCRNoRepeatNGramLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.testing import FakeRequest, ProcessorContract

tokens = st.integers(0, 2)


class TestContract(ProcessorContract):
    processor = DeepseekOCRNoRepeatNGramLogitProcessor
    valid_params = (
        {"ngram_size": 2, "window_size": 9, "scope": "output"},
        {"ngram_size": 1, "window_size": 1, "scope": "output"},
        {"preset": "unlimited-ocr"},
        {"preset": "unlimited-ocr-multi-page", "ngram_size": 2, "scope": "output"},
    )
    invalid_params = (
        ({}, "ngram_size"),
        ({"ngram_size": 2}, "window_size"),
        ({"preset": "unlimited-ocr", "ngram_size": 200}, "window_size"),
        ({"preset": "unlimited"}, "preset"),
        ({"preset": "unlimited-ocr", "scope": "prompt"}, "scope"),
        ({"preset": "deepseek-ocr"}, "whitelist_token_ids"),  # a vocabulary of 1,000
    )


def as_deepseek_does(output, ngram_size, window_size):
    """Return the tokens that DeepSeek's own rule bans; it reads only generated tokens."""
    banned = set()
    for start in range(max(0, len(output) - window_size), len(output) - ngram_size + 1):
        *prefix, last = output[start : start + ngram_size]
        if prefix == output[len(output) - ngram_size + 1 :]:
            banned.add(last)
    return banned


@given(
    prompt=st.lists(tokens, max_size=12),
    output=st.lists(tokens, max_size=30),
    ngram_size=st.integers(2, 5),
    more=st.integers(0, 20),
)
def test_output_alone_counts_as_in_the_code_of_deepseek(prompt, output, ngram_size, more):
    window_size = ngram_size + more
    request = FakeRequest(prompt)
    custom_params = request.custom_params(
        {"ngram_size": ngram_size, "window_size": window_size, "scope": "output"}
    )
    processor = DeepseekOCRNoRepeatNGramLogitProcessor()

    for position in range(len(output) + 1):
        row = processor(torch.zeros(1, 4), [custom_params])[0]
        banned = {i for i, logit in enumerate(row.tolist()) if logit}
        assert banned == as_deepseek_does(output[:position], ngram_size, window_size)
        if position < len(output):
            request.append(output[position])


@pytest.mark.parametrize(
    ("preset", "ngram_size", "window_size", "cells"),
    [
        ("deepseek-ocr", 30, 90, True),
        ("deepseek-ocr-pdf", 20, 50, True),
        ("deepseek-ocr-eval", 40, 90, True),
        ("deepseek-ocr-2", 20, 90, True),
        ("deepseek-ocr-2-pdf", 20, 50, True),
        ("deepseek-ocr-2-eval", 40, 90, True),
        ("unlimited-ocr", 35, 128, False),
        ("unlimited-ocr-multi-page", 35, 1024, False),
    ],
)
def test_a_preset_is_what_was_published(preset, ngram_size, window_size, cells):
    params = DeepseekOCRNoRepeatNGramLogitProcessor.parse_params({"preset": preset}, 129_280)

    assert (params.ngram_size, params.window_size) == (ngram_size, window_size)
    assert params.whitelist_token_ids == ({128821, 128822} if cells else set())


def test_what_a_request_says_counts_before_its_preset():
    params = DeepseekOCRNoRepeatNGramLogitProcessor.parse_params(
        {"preset": "deepseek-ocr", "window_size": 200, "whitelist_token_ids": []}
    )

    assert (params.ngram_size, params.window_size) == (30, 200)
    assert params.whitelist_token_ids == frozenset()


def test_a_server_of_another_model_refuses_the_ids_of_a_preset():
    with pytest.raises(InvalidParameter, match="another model"):
        DeepseekOCRNoRepeatNGramLogitProcessor.parse_params({"preset": "deepseek-ocr"}, 32_000)
