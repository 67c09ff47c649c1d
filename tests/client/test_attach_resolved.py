"""Texts that a client resolves with its own copy of the tokenizer."""

import json

import pytest

from sglang_lp import attach
from sglang_lp.client.models import load_model
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.links import prepare
from sglang_lp.served_model import ServedModel
from support.models.vocabularies import byte_level

TOKENIZER = byte_level(["Sure, here is the list: the cat, the mat"] * 9, 290)
TOKENIZER.add_special_tokens(["<think>", "</think>"])
VOCAB_SIZE = 320

#: Parameters with texts in place of token ids.
FOR_TOKENS = {
    "ForcedSequenceLogitProcessor": {"text": "Sure, here"},
    "DisallowedTokensLogitsProcessor": {"texts": ["the", ":"], "token_ids": [7]},
    "AllowedTokensLogitProcessor": {"texts": ["S", " the"]},
    "DRYLogitProcessor": {"dry_multiplier": 0.5, "dry_sequence_breakers": [","]},
    "MinLengthLogitProcessor": {"end_token_ids": [1], "min_tokens": 4},
    "ThinkingBudgetLogitProcessor": {"thinking_budget": 4, "closing": "the list"},
    "TriggerPhraseLogitProcessor": {"phrase": "the mat"},
}
#: Texts that are looked for, whichever tokens spell them.
FOR_TEXTS = {
    "BadWordsLogitProcessor": {"words": ["cat"], "ignore_case": True},
    "ChoiceLogitProcessor": {"choices": ["the cat", "the mat"]},
    "ForcedWordsLogitProcessor": {"words": ["cat", "mat"], "within_tokens": 50},
    "TriggerPhraseLogitProcessor": {"trigger": "cat", "phrase": "the mat", "max_times": 3},
}
CASES = [*FOR_TOKENS.items(), *FOR_TEXTS.items()]


@pytest.fixture
def model(tmp_path):
    TOKENIZER.save(str(tmp_path / "tokenizer.json"))
    config = {"vocab_size": VOCAB_SIZE, "eos_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def fitted(attachment, served):
    return prepare(attachment.processor(), attachment.custom_params, served)[0].params


@pytest.mark.parametrize(("name", "params"), CASES)
def test_what_a_client_resolved_is_to_the_server_what_the_texts_are(model, name, params):
    asked, served = attach(name, **params), load_model(model)
    resolved = asked.resolve(model)

    assert fitted(resolved, served) == fitted(asked, served)
    assert (resolved.processor, resolved.payload) == (asked.processor, asked.payload)
    assert asked.custom_params == attach(name, **params).custom_params


@pytest.mark.parametrize(("name", "params"), FOR_TOKENS.items())
def test_a_server_without_a_tokenizer_takes_what_stands_for_tokens(model, name, params):
    asked = attach(name, **params)

    sent = fitted(asked.resolve(model), ServedModel(None, VOCAB_SIZE))

    assert sent == fitted(asked, load_model(model))


@pytest.mark.parametrize(("name", "params"), FOR_TEXTS.items())
def test_what_is_looked_for_stays_text(model, name, params):
    sent = attach(name, **params).resolve(model).custom_params

    looked_for = {"words", "choices", "trigger"} & params.keys()
    assert {key: sent[key] for key in looked_for} == {key: params[key] for key in looked_for}


def test_the_links_of_a_chain_are_resolved_each(model):
    cases = [*FOR_TOKENS.items()][1:6] + [*FOR_TEXTS.items()][-2:]
    links = [attach(name, **params) for name, params in cases]
    whole, served = attach(links), load_model(model)
    resolved = whole.resolve(model)

    assert fitted(resolved, served) == fitted(whole, served)
    assert resolved.custom_params == attach([one.resolve(model) for one in links]).custom_params


def test_what_the_model_cannot_write_is_refused_by_the_parameters_name(model):
    with pytest.raises(InvalidParameter, match="choices"):
        attach("ChoiceLogitProcessor", choices=["\ufffd"])
    narrow = byte_level(["a"], 290)
    asked = attach("ThinkingBudgetLogitProcessor", thinking_budget=4)
    assert asked.resolve(model).custom_params["thinking_start_token_ids"] == [
        TOKENIZER.token_to_id("<think>")
    ]

    with pytest.raises(InvalidParameter, match="thinking"):
        asked.resolve(narrow)


@pytest.mark.parametrize("tokenizer", [None, 5, "no/such/directory"])
def test_something_else_than_a_tokenizer_is_refused_with_what_was_expected(tokenizer):
    with pytest.raises(RequestError, match="expected"):
        attach("ForcedSequenceLogitProcessor", text="a").resolve(tokenizer)


class Foreign:
    """A class with only SGLang's interface."""

    @staticmethod
    def to_str():
        return '{"callable": "00"}'


def test_a_class_of_another_library_is_refused():
    with pytest.raises(RequestError, match="Foreign"):
        attach(Foreign, text="a").resolve(TOKENIZER)
