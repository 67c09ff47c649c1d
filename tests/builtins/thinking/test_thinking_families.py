"""The known model families: all of these follow from a family's row."""

from pathlib import Path

import pytest

from sglang_lp import builtins
from sglang_lp.builtins.thinking.known import FAMILIES
from sglang_lp.testing import ProcessorContract, run

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.processor)


def closing_of(family):
    return [*([] if family.new_line_id is None else [family.new_line_id]), *family.end_ids]


def vocab_size_for(family):
    return max(*family.start_ids, *closing_of(family)) + 1


def contract_of(family):
    """Return the contract suite for the class of a family."""

    class ModelFamily(ProcessorContract):
        processor = getattr(builtins, family.processor)
        valid_params = ({"thinking_budget": 2},)
        invalid_params = (({"thinking_budget": "4"}, "thinking_budget"),)
        vocab_size = vocab_size_for(family)
        token_ids = (*family.start_ids, *closing_of(family))

    return ModelFamily


for known in FAMILIES:
    globals()[f"Test{known.processor}"] = contract_of(known)


def test_there_is_a_builtin_for_every_family_and_for_no_other():
    classes = {
        name
        for name in builtins.__all__
        if name.endswith("ThinkingBudgetLogitProcessor") and getattr(builtins, name).family
    }

    assert classes == {family.processor for family in FAMILIES}


@every_family
def test_a_class_has_the_figures_of_its_family(family):
    processor = getattr(builtins, family.processor)

    params = processor.parse_params({"thinking_budget": 0}, vocab_size_for(family))

    assert processor.family == family
    assert (params.start, params.end) == (family.start_ids, family.end_ids)
    assert params.new_line_token_id == family.new_line_id
    assert family.source


@every_family
def test_a_class_closes_the_block_of_its_family(family):
    closing = closing_of(family)
    script = [5] * (len(closing) + 3)

    played = run(
        getattr(builtins, family.processor),
        {"thinking_budget": 2},
        [7, *family.start_ids],
        script,
        steps=len(script),
        vocab_size=vocab_size_for(family),
    )

    assert played.token_ids == [5, 5, *closing, 5]


def test_no_two_families_have_the_same_ids():
    assert len({(family.start_ids, family.end_ids) for family in FAMILIES}) == len(FAMILIES)


@every_family
def test_a_class_shows_its_ids_as_sglang_does(family):
    processor = getattr(builtins, family.processor)
    shown = (
        processor.THINKING_START_TOKEN_ID,
        processor.THINKING_END_TOKEN_ID,
        processor.NEW_LINE_TOKEN_ID,
    )

    singles = [ids[0] if len(ids) == 1 else None for ids in (family.start_ids, family.end_ids)]
    assert shown == (*singles, family.new_line_id)


def test_a_class_of_ones_own_sets_its_ids_as_with_sglang():
    class Mine(builtins.Qwen3ThinkingBudgetLogitProcessor):
        THINKING_START_TOKEN_ID = 1
        THINKING_END_TOKEN_ID = 2
        NEW_LINE_TOKEN_ID = 3

    params = Mine.parse_params({"thinking_budget": 0}, 4)

    assert (params.start, params.end, params.new_line_token_id) == ((1,), (2,), 3)


@every_family
def test_the_guide_has_the_same_figures(family):
    text = (Path(__file__).parents[3] / "docs" / "thinking-models.md").read_text()
    delimiters = [
        f"`{text}` {', '.join(map(str, ids))}".replace("\n", "\\n").replace("|", "\\|")
        for text, ids in ((family.start, family.start_ids), (family.end, family.end_ids))
    ]
    for cells in (
        [f"`{family.processor}`"],
        [*delimiters, str(family.new_line_id or "none")],
        [family.source],
    ):
        assert f"| {' | '.join([family.models, *cells])} |" in text.splitlines()
