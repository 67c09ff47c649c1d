"""The shipped contract suite, over every built-in."""

import re
from pathlib import Path

from sglang_lp import builtins
from sglang_lp.builtins import (
    DeepseekOCRNoRepeatNGramLogitProcessor,
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from sglang_lp.builtins.thinking.known import FAMILIES
from sglang_lp.testing import ProcessorContract


class TestDisallowedTokens(ProcessorContract):
    processor = DisallowedTokensLogitsProcessor
    valid_params = ({"token_ids": [5]}, {"token_ids": []}, {"token_ids": [*range(900), 7, 7]})
    invalid_params = (
        ({}, "token_ids"),
        ({"token_ids": None}, "token_ids"),
        ({"token_ids": "5"}, "token_ids"),
        ({"token_ids": [5, -1]}, "token_ids"),
        ({"token_ids": [1000]}, "token_ids"),
        ({"token_ids": [True]}, "token_ids"),
        ({"token_ids": [1.0]}, "token_ids"),
        ({"token_ids": [1] * 65_537}, "token_ids"),
    )


class TestForcedSequence(ProcessorContract):
    processor = ForcedSequenceLogitProcessor
    valid_params = (
        {"token_ids": [3, 1, 2]},
        {"token_ids": [3], "eos_token_ids": [9]},
        {"token_ids": [], "eos_token_ids": [0]},
        {"token_ids": [8] * 50},
    )
    invalid_params = (
        ({}, "token_ids"),
        ({"token_ids": [1000]}, "token_ids"),
        ({"token_ids": [1], "eos_token_ids": [1000]}, "eos_token_ids"),
        ({"token_ids": [1], "eos_token_ids": [-1]}, "eos_token_ids"),
    )


class TestNoRepeatNGram(ProcessorContract):
    processor = DeepseekOCRNoRepeatNGramLogitProcessor
    valid_params = (
        {"ngram_size": 1, "window_size": 10},
        {"ngram_size": 2, "window_size": 100, "whitelist_token_ids": [4, 5]},
        {"ngram_size": 3, "window_size": 3, "whitelist_token_ids": None},
        {"ngram_size": 30, "window_size": 90},
    )
    invalid_params = (
        ({"window_size": 9}, "ngram_size"),
        ({"ngram_size": 2}, "window_size"),
        ({"ngram_size": 0, "window_size": 9}, "ngram_size"),
        ({"ngram_size": "2", "window_size": 9}, "ngram_size"),
        ({"ngram_size": 2.5, "window_size": 9}, "ngram_size"),
        ({"ngram_size": 3, "window_size": 2}, "window_size"),
        ({"ngram_size": 3, "window_size": 2**31}, "window_size"),
        ({"ngram_size": 2, "window_size": 9, "whitelist_token_ids": [1000]}, "whitelist_token_ids"),
        ({"ngram_size": 2, "window_size": 9, "whitelist_token_ids": 4}, "whitelist_token_ids"),
    )


IDS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2, "new_line_token_id": 3}


class TestThinkingBudget(ProcessorContract):
    processor = ThinkingBudgetLogitProcessor
    valid_params = (
        *({"thinking_budget": budget, **IDS} for budget in (0, 1, 2, 5, 1000)),
        {"thinking_budget": 3, "thinking_start_token_id": 4, "thinking_end_token_id": 5},
        {"thinking_budget": 3, **IDS, "new_line_token_id": 2},
        IDS,
        {"thinking_budget": -1, **IDS},
        {"thinking_budget": None, **IDS},
    )
    invalid_params = (
        ({"thinking_budget": True, **IDS}, "thinking_budget"),
        ({"thinking_budget": 5, "thinking_end_token_id": 5}, "thinking_start_token_id"),
        ({"thinking_budget": 5, **IDS, "thinking_end_token_id": None}, "thinking_end_token_id"),
        ({"thinking_budget": 5, **IDS, "thinking_end_token_id": 1}, "thinking_end_token_id"),
        ({"thinking_budget": 5, **IDS, "thinking_end_token_id": 1000}, "thinking_end_token_id"),
        ({"thinking_budget": 5, **IDS, "new_line_token_id": 1}, "new_line_token_id"),
    )


def test_every_builtin_is_under_contract_here_or_beside_its_own_tests():
    tested = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        text = path.read_text()
        if "ProcessorContract" in text:
            tested |= {*re.findall(r"^    processor = (?:\w+\.)?(\w+)$", text, re.MULTILINE)}
    model_families = {family.processor for family in FAMILIES}  # in test_thinking_families

    served = {"CatalogueLogitProcessor", "WatermarkLogitProcessor"}
    assert {*builtins.__all__} - served <= tested | model_families
    # These need a catalogue or a key, so their contract is that of classes which have one.
    assert {"Knowing", "GreenMarks", "SelfMarks", "TournamentMarks"} <= tested
