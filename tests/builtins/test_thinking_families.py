"""The known model families: their figures, and a class for each."""

from pathlib import Path

import pytest

from sglang_lp import builtins
from sglang_lp.builtins import (
    DeepSeekR1DistillQwenThinkingBudgetLogitProcessor,
    DeepSeekV4ThinkingBudgetLogitProcessor,
    Glm5ThinkingBudgetLogitProcessor,
    GptOssThinkingBudgetLogitProcessor,
    HunyuanA13BThinkingBudgetLogitProcessor,
    Hy3ThinkingBudgetLogitProcessor,
    KimiK2ThinkingBudgetLogitProcessor,
    Qwen3_5ThinkingBudgetLogitProcessor,
)
from sglang_lp.builtins._families import FAMILIES
from sglang_lp.testing import ProcessorContract, run

#: Name of the class without its common ending: start, end, newline, size of the vocabulary.
FIGURES = {
    "Qwen3": ((151667,), (151668,), 198, 151936),
    "Qwen3_5": ((248068,), (248069,), 198, 248320),
    "DeepSeekR1": ((128798,), (128799,), 201, 129280),
    "DeepSeekR1DistillQwen": ((151648,), (151649,), None, None),
    "DeepSeekV4": ((128821,), (128822,), None, 129280),
    "Glm4Moe": ((151350,), (151351,), 198, 151552),
    "Glm5": ((154841,), (154842,), 198, 154880),
    "KimiK2": ((163606,), (163607,), 198, 163840),
    "Inkling": ((200008,), (200010,), 198, 201024),
    "Hy3": ((120029,), (120030,), None, 120832),
    "HunyuanA13B": ((14023, 771, 397), (198, 524, 27963, 397, 27, 9399, 397), None, None),
    "GptOss": ((200005, 35644, 200008), (200007,), None, None),
}


def test_there_is_a_class_for_every_family_and_for_no_other():
    classes = {
        name
        for name in builtins.__all__
        if name.endswith("ThinkingBudgetLogitProcessor") and getattr(builtins, name).family
    }

    assert classes == {family.processor for family in FAMILIES}
    assert classes == {f"{name}ThinkingBudgetLogitProcessor" for name in FIGURES}


@pytest.mark.parametrize("name", FIGURES)
def test_a_class_has_the_figures_of_its_family(name):
    processor = getattr(builtins, f"{name}ThinkingBudgetLogitProcessor")
    start, end, newline, vocab_size = FIGURES[name]

    params = processor.parse_params({"thinking_budget": 0}, vocab_size)

    assert (params.start, params.end, params.new_line_token_id) == (start, end, newline)
    assert processor.family.vocab_size == vocab_size
    assert processor.family.processor == processor.__name__
    assert processor.family.source


@pytest.mark.parametrize("name", FIGURES)
def test_a_class_closes_the_block_of_its_family(name):
    processor = getattr(builtins, f"{name}ThinkingBudgetLogitProcessor")
    start, end, newline, _ = FIGURES[name]
    closing = [*([] if newline is None else [newline]), *end]
    script = [5] * (len(closing) + 3)

    played = run(
        processor,
        {"thinking_budget": 2},
        [7, *start],
        script,
        steps=len(script),
        vocab_size=max(*start, *closing) + 1,
    )

    assert played.token_ids == [5, 5, *closing, 5]


def test_no_two_families_have_the_same_ids():
    assert len({(family.start_ids, family.end_ids) for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_class_shows_its_ids_as_sglang_does(name):
    processor = getattr(builtins, f"{name}ThinkingBudgetLogitProcessor")
    start, end, newline, _ = FIGURES[name]

    assert (start[0] if len(start) == 1 else None) == processor.THINKING_START_TOKEN_ID
    assert (end[0] if len(end) == 1 else None) == processor.THINKING_END_TOKEN_ID
    assert newline == processor.NEW_LINE_TOKEN_ID


def test_a_class_of_ones_own_sets_its_ids_as_with_sglang():
    class Mine(builtins.Qwen3ThinkingBudgetLogitProcessor):
        THINKING_START_TOKEN_ID = 1
        THINKING_END_TOKEN_ID = 2
        NEW_LINE_TOKEN_ID = 3

    params = Mine.parse_params({"thinking_budget": 0}, 4)

    assert (params.start, params.end, params.new_line_token_id) == ((1,), (2,), 3)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.processor)
def test_the_guide_has_the_same_figures(family):
    text = (Path(__file__).parents[2] / "docs" / "thinking.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"| {family.models} |"))

    for side, ids in ((family.start, family.start_ids), (family.end, family.end_ids)):
        shown = side.replace("\n", "\\n").replace("|", "\\|")
        assert f"| `{shown}` {', '.join(map(str, ids))} |" in row
    assert f"| `{family.processor}` |" in row
    assert row.endswith(f"| {family.new_line_id or 'none'} | {family.source} |")


class ModelFamily(ProcessorContract):
    valid_params = ({"thinking_budget": 2},)
    invalid_params = (({}, "thinking_budget"), ({"thinking_budget": "4"}, "thinking_budget"))


class TestQwen35(ModelFamily):
    processor = Qwen3_5ThinkingBudgetLogitProcessor
    vocab_size = 248_070
    token_ids = (248_068, 248_069, 198)


class TestDeepSeekR1DistillQwen(ModelFamily):
    processor = DeepSeekR1DistillQwenThinkingBudgetLogitProcessor
    vocab_size = 151_650
    token_ids = (151_648, 151_649)


class TestDeepSeekV4(ModelFamily):
    processor = DeepSeekV4ThinkingBudgetLogitProcessor
    vocab_size = 128_823
    token_ids = (128_821, 128_822)


class TestGlm5(ModelFamily):
    processor = Glm5ThinkingBudgetLogitProcessor
    vocab_size = 154_843
    token_ids = (154_841, 154_842, 198)


class TestKimiK2(ModelFamily):
    processor = KimiK2ThinkingBudgetLogitProcessor
    vocab_size = 163_608
    token_ids = (163_606, 163_607, 198)


class TestHy3(ModelFamily):
    processor = Hy3ThinkingBudgetLogitProcessor
    vocab_size = 120_031
    token_ids = (120_029, 120_030)


class TestHunyuanA13B(ModelFamily):
    processor = HunyuanA13BThinkingBudgetLogitProcessor
    vocab_size = 27_964
    token_ids = (14023, 771, 397, 198, 524, 27963, 27, 9399)


class TestGptOss(ModelFamily):
    processor = GptOssThinkingBudgetLogitProcessor
    vocab_size = 200_009
    token_ids = (200_005, 35_644, 200_008, 200_007)
