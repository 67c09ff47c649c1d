"""Thinking delimiters in tokenizers: found, checked, and refused where they are another model's."""

import pytest
from transformers import PreTrainedTokenizerFast

from sglang_lp import builtins
from sglang_lp.builtins import (
    ChainLogitProcessor,
    InklingThinkingBudgetLogitProcessor,
    Qwen3_5ThinkingBudgetLogitProcessor,
    Qwen3ThinkingBudgetLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from sglang_lp.builtins.thinking import delimiters
from sglang_lp.builtins.thinking.known import FAMILIES
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.served_model import ServedModel
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.testing import FakeRequest
from sglang_lp.trust import Policy
from support.models.vocabularies import one_token_a_byte


def both(raw):
    """Return it as a client loads it, and as SGLang does."""
    return [raw, PreTrainedTokenizerFast(tokenizer_object=raw)]


class Named:
    """A tokenizer with names for a few ids, like the special tokens of a big model."""

    unk_token_id = None

    def __init__(self, names):
        self.names = names
        self.ids = {name: token_id for token_id, name in names.items()}
        self.asked = 0

    def convert_tokens_to_ids(self, token):
        self.asked += 1
        return self.ids.get(token)

    def convert_ids_to_tokens(self, token_id):
        self.asked += 1
        return self.names.get(token_id, "word")

    def get_added_vocab(self):
        return self.ids

    def encode(self, text, *, add_special_tokens):
        assert not add_special_tokens
        return self.spelling.get(text, [0]) if hasattr(self, "spelling") else [0]

    def decode(self, token_ids, *, skip_special_tokens):
        assert not skip_special_tokens
        spelled = getattr(self, "spelling", {})
        return next((text for text, ids in spelled.items() if [*ids] == token_ids), "?")


def served_by(family):
    """Make a tokenizer that has the delimiters of a family where it says."""
    names = {}
    tokenizer = Named(names)
    tokenizer.spelling = {family.start: family.start_ids, family.end: family.end_ids}
    for text, ids in ((family.start, family.start_ids), (family.end, family.end_ids)):
        if len(ids) == 1:
            names[ids[0]] = text
    if family.new_line_id is not None:
        tokenizer.spelling["\n"] = [family.new_line_id]
    tokenizer.ids = {name: token_id for token_id, name in names.items()}
    return tokenizer


# Found


@pytest.mark.parametrize(("start", "end"), delimiters.PAIRS)
def test_every_known_pair_is_found_by_itself(start, end):
    controls = [part for text in (start, end) for part in delimiters._CONTROL.findall(text)]
    single = [text for text in (start, end) if delimiters._CONTROL.sub("", text) in ("", text)]
    for tokenizer in both(one_token_a_byte(*dict.fromkeys([*controls, *single]))):
        found = delimiters.resolve(tokenizer)

        assert (found.start, found.end) == (start, end)
        assert tokenizer.decode([*found.start_ids], skip_special_tokens=False) == start
        assert tokenizer.decode([*found.end_ids], skip_special_tokens=False) == end


def test_the_newline_is_that_of_the_tokenizer():
    for tokenizer in both(one_token_a_byte("<think>", "</think>")):
        found = delimiters.resolve(tokenizer)

        assert (found.start_ids, found.end_ids) == ((256,), (257,))
        assert tokenizer.decode([found.new_line_id]) == "\n"


def test_no_pair_and_two_pairs_are_an_error_that_says_so():
    for tokenizer in both(one_token_a_byte("<think>")):
        with pytest.raises(RequestError, match=r"found none; name them with thinking_start"):
            delimiters.resolve(tokenizer)
    for tokenizer in both(one_token_a_byte("<think>", "</think>", "[THINK]", "[/THINK]")):
        with pytest.raises(RequestError, match=r"'<think>' '</think>', '\[THINK\]'"):
            delimiters.resolve(tokenizer)
        assert delimiters.resolve(tokenizer, "[THINK]", "[/THINK]").start_ids == (258,)


def test_a_name_with_a_suffix_is_found_by_the_name_without():
    tokens = ["<think:opensource>", "</think:opensource>"]
    for tokenizer in both(one_token_a_byte(*tokens, special=False)):
        assert delimiters.resolve(tokenizer).start_ids == (256,)
    for tokenizer in both(one_token_a_byte(*tokens, "<think:other>")):
        with pytest.raises(RequestError, match="found none"):
            delimiters.resolve(tokenizer)


def test_delimiters_by_name_may_be_words():
    for tokenizer in both(one_token_a_byte()):
        found = delimiters.resolve(tokenizer, "let me think:", "done.")

        assert [len(found.start_ids), len(found.end_ids)] == [13, 5]
        assert found.new_line_id is None


def test_a_text_that_comes_back_as_another_is_no_delimiter():
    tokenizer = Named({})
    tokenizer.spelling = {"other": (0,)}

    with pytest.raises(RequestError, match="no tokens that spell '<think>'"):
        delimiters.resolve(tokenizer, "<think>", "</think>")


def test_the_unknown_token_is_no_delimiter():
    tokenizer = Named({5: "<think>", 6: "</think>"})
    tokenizer.unk_token_id = 6

    with pytest.raises(RequestError, match="found none"):
        delimiters.resolve(tokenizer)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.models != "Hunyuan-A13B"])
def test_a_known_family_is_recognised(family):
    tokenizer = served_by(family)
    for control in delimiters._CONTROL.findall(family.start):
        tokenizer.ids.setdefault(control, 10 + len(tokenizer.ids))
        tokenizer.names.setdefault(tokenizer.ids[control], control)

    found = delimiters.resolve(tokenizer)

    assert found.family is family
    assert found.new_line_id == family.new_line_id


# Checked


def asked(params):
    """Return the parameters that a request may set."""
    return {
        name: getattr(params, name)
        for name in ThinkingBudgetLogitProcessor.Params.__struct_fields__
    }


def fitted(processor, params, tokenizer):
    return asked(processor.fit_params(params, ServedModel(tokenizer)))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.processor)
def test_a_class_is_taken_by_its_own_models_and_refused_by_others(family):
    processor = getattr(builtins, family.processor)
    params = processor.parse_params({"thinking_budget": 5})

    for other in FAMILIES:
        tokenizer = served_by(other)
        if other is family:
            assert fitted(processor, params, tokenizer) == asked(params)
        elif not (family.native and other.native):
            with pytest.raises(InvalidParameter) as refused:
                processor.fit_params(params, ServedModel(tokenizer))
            if not other.native:
                assert f"use {other.processor}" in str(refused.value)


def test_the_refusal_says_which_ids_which_model_and_what_to_use():
    qwen35 = next(f for f in FAMILIES if f.models.startswith("Qwen3.5"))
    params = Qwen3ThinkingBudgetLogitProcessor.parse_params({"thinking_budget": 5})

    with pytest.raises(InvalidParameter) as refused:
        Qwen3ThinkingBudgetLogitProcessor.fit_params(params, ServedModel(served_by(qwen35)))

    assert str(refused.value) == (
        "custom_params of Qwen3ThinkingBudgetLogitProcessor: the served model is not of this "
        "family (Qwen3, Qwen3-2507 Thinking): in its tokenizer '<think>' is 248068, not 151667 and "
        "'</think>' is 248069, not 151668; use Qwen3_5ThinkingBudgetLogitProcessor, or "
        "ThinkingBudgetLogitProcessor, which asks the tokenizer"
    )


def test_a_model_that_does_not_think_is_told_so():
    params = Qwen3ThinkingBudgetLogitProcessor.parse_params({"thinking_budget": 5})

    for tokenizer in both(one_token_a_byte()):
        with pytest.raises(InvalidParameter, match="'<think>' is no token, not 151667"):
            Qwen3ThinkingBudgetLogitProcessor.fit_params(params, ServedModel(tokenizer))


def test_a_class_whose_ids_the_model_lacks_names_the_class_that_has_none():
    with pytest.raises(InvalidParameter, match="Thinking: use ThinkingBudgetLogitP"):
        Qwen3ThinkingBudgetLogitProcessor.parse_params({"thinking_budget": 5}, 32_000)


def test_ids_that_a_request_gives_itself_are_its_own_business():
    given = {"thinking_start_token_id": 1, "thinking_end_token_id": 2, "thinking_budget": 5}
    params = Qwen3ThinkingBudgetLogitProcessor.parse_params(given)

    assert fitted(Qwen3ThinkingBudgetLogitProcessor, params, one_token_a_byte()) == asked(params)


def test_a_native_alphabet_is_not_looked_for_in_the_tokenizer():
    params = InklingThinkingBudgetLogitProcessor.parse_params({"thinking_budget": 5})

    assert fitted(InklingThinkingBudgetLogitProcessor, params, one_token_a_byte()) == asked(params)


def test_a_tokenizer_is_asked_once():
    tokenizer = served_by(FAMILIES[0])
    params = Qwen3ThinkingBudgetLogitProcessor.parse_params({"thinking_budget": 5})
    wrong = Qwen3_5ThinkingBudgetLogitProcessor.parse_params({"thinking_budget": 5})

    def ask():
        Qwen3ThinkingBudgetLogitProcessor.fit_params(params, ServedModel(tokenizer))
        with pytest.raises(InvalidParameter):
            Qwen3_5ThinkingBudgetLogitProcessor.fit_params(wrong, ServedModel(tokenizer))

    ask()
    before = tokenizer.asked
    ask()

    assert tokenizer.asked == before


def test_a_tokenizer_is_asked_once_for_what_it_does_not_have():
    tokenizer = served_by(FAMILIES[0])

    def ask():
        with pytest.raises(RequestError, match="no tokens that spell"):
            delimiters.resolve(tokenizer, "\N{SNOWMAN}", "</think>")

    ask()
    before = tokenizer.asked
    ask()

    assert tokenizer.asked == before


def test_a_text_of_more_tokens_than_a_delimiter_has_is_refused():
    guard = guard_of(one_token_a_byte("</think>"))
    params = {"thinking_budget": 5, "thinking_start": "a" * 17, "thinking_end": "</think>"}

    with pytest.raises(
        InvalidParameter, match=r"^thinking_start of .*: expected a text of at most 16"
    ):
        guard.admit(Intake("ThinkingBudgetLogitProcessor", params))


def test_half_a_character_is_no_delimiter():
    for tokenizer in both(one_token_a_byte("<think>", "</think>")):
        with pytest.raises(RequestError, match="no tokens that spell"):
            delimiters.resolve(tokenizer, "\ud800", "</think>")


# On a server


def guard_of(tokenizer, vocab_size=250_000):
    guard = Guard(Policy.default())
    guard.server.tokenizer, guard.server.vocab_size = tokenizer, vocab_size
    return guard


def test_the_guard_takes_the_ids_from_the_served_tokenizer():
    for tokenizer in both(one_token_a_byte("<think>", "</think>")):
        admitted = guard_of(tokenizer).admit(
            Intake(ThinkingBudgetLogitProcessor.to_str(), {"thinking_budget": 5})
        )
        params = admitted.servings[0].params

        assert (params.start, params.end) == ((256,), (257,))
        assert tokenizer.decode([params.new_line_token_id]) == "\n"


def test_the_guard_refuses_another_models_class():
    qwen35 = next(f for f in FAMILIES if f.models.startswith("Qwen3.5"))

    with pytest.raises(InvalidParameter, match="use Qwen3_5ThinkingBudgetLogitProcessor"):
        guard_of(served_by(qwen35)).admit(
            Intake(Qwen3ThinkingBudgetLogitProcessor.to_str(), {"thinking_budget": 5})
        )


def test_the_guard_says_when_there_is_no_tokenizer_to_ask():
    with pytest.raises(InvalidParameter, match="no tokenizer to ask"):
        guard_of(None).admit(Intake(ThinkingBudgetLogitProcessor.to_str(), {"thinking_budget": 5}))


def test_ids_beyond_the_models_logits_are_refused():
    tokenizer = one_token_a_byte("<think>", "</think>")

    with pytest.raises(InvalidParameter, match="another model's"):
        guard_of(tokenizer, vocab_size=257).admit(
            Intake(ThinkingBudgetLogitProcessor.to_str(), {"thinking_budget": 5})
        )


def test_a_link_of_a_chain_is_checked_as_well():
    qwen35 = next(f for f in FAMILIES if f.models.startswith("Qwen3.5"))
    asked = {"chain": ["Qwen3ThinkingBudgetLogitProcessor"], "0.thinking_budget": 5}

    with pytest.raises(InvalidParameter, match="use Qwen3_5ThinkingBudgetLogitProcessor"):
        guard_of(served_by(qwen35)).admit(Intake(ChainLogitProcessor.to_str(), asked))


def test_a_message_that_holds_a_delimiter_is_refused_once_the_delimiter_is_known():
    tokenizer = one_token_a_byte("<think>", "</think>")

    with pytest.raises(InvalidParameter, match="closing_token_ids"):
        guard_of(tokenizer).admit(
            Intake(
                ThinkingBudgetLogitProcessor.to_str(),
                {"thinking_budget": 5, "closing_token_ids": [257]},
            )
        )


def test_a_stock_server_finds_the_ids_too():
    import torch

    request = FakeRequest([256])
    request.tokenizer = one_token_a_byte("<think>", "</think>")
    logits = torch.zeros(1, 260)

    ThinkingBudgetLogitProcessor()(logits, [request.custom_params({"thinking_budget": 0})])

    assert request.tokenizer.decode([int(logits[0].argmax())]) == "\n"
