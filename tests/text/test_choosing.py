"""Answers that are one of several texts, against trying every token at every step."""

import random

import pytest
import torch

from sglang_lp.builtins import ChoiceLogitProcessor
from sglang_lp.errors import Contradiction, InvalidParameter, RequestError
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest, ProcessorContract
from sglang_lp.text.choosing import TextChoices
from sglang_lp.text.vocabulary import Vocabulary, vocabulary_of
from support.models.vocabularies import byte_level

TOKENIZER = byte_level(["yes, no, yesterday, nothing, 不是 😀"] * 9, 280)
VOCAB_SIZE = 300
END = 0


def can_be_finished(said, choices, tokens):
    """Say by definition whether tokens lead from here to a choice."""
    return said in choices or any(
        can_be_finished(said + token, choices, tokens)
        for token in {*tokens}
        if token and any(choice.startswith(said + token) for choice in choices)
    )


@pytest.mark.parametrize("seed", range(4))
def test_exactly_the_tokens_that_lead_to_a_choice_continue_it(seed):
    some, refused, places = random.Random(seed), 0, 0
    for _ in range(300):
        letters = some.sample("abé€😀", some.randint(2, 3))
        tokens = [b""]
        for _ in range(some.randint(2, 9)):
            text = "".join(some.choices(letters, k=some.randint(1, 3))).encode()
            start = some.randrange(len(text))
            tokens.append(text[start : some.randint(start + 1, len(text))])
        tokens += [bytes([byte]) for byte in "".join(letters).encode() if some.random() < 0.8]
        texts = ["".join(some.choices(letters, k=some.randint(1, 4))) for _ in range(3)]
        choices = {text.encode() for text in texts}
        if not all(can_be_finished(b"", {choice}, tokens) for choice in choices):
            with pytest.raises(RequestError, match="no tokens spell"):
                TextChoices(Vocabulary(tokens), texts)
            refused += 1
            continue
        found, said = TextChoices(Vocabulary(tokens), texts), b""
        while True:
            right = {
                token_id
                for token_id, token in enumerate(tokens)
                if token
                and any(choice.startswith(said + token) for choice in choices)
                and can_be_finished(said + token, choices, tokens)
            }
            assert {*found.continuing(said)} == right
            assert found.is_complete(said) == (said in choices)
            for token_id, token in enumerate(tokens):
                after = said + token if any(c.startswith(said + token) for c in choices) else None
                assert found.step(said, token_id) == (after if token else None)
            if not right:
                break
            said = found.step(said, some.choice([*right]))
            places += 1
        assert said in choices
    assert 20 < refused < 280
    assert places > 300


class TestContract(ProcessorContract):
    processor = ChoiceLogitProcessor
    valid_params = ({"choices": ["yes", "no"]}, {"choices": ["yes", "yesterday"]})
    invalid_params = (
        ({}, "choices"),
        ({"choices": []}, "choices"),
        ({"choices": [""]}, "choices"),
        ({"choices": ["a" * 257]}, "choices"),
        ({"choices": ["\udc80"]}, "choices"),
        ({"choices": [f"{n:0200}" for n in range(41)]}, "8192 bytes"),
        ({"choices": ["a"], "token_ids": [1], "lengths": [1]}, "choices"),
        ({"choices": ["a"], "lengths": [1]}, "lengths"),
    )
    tokenizer = TOKENIZER
    eos_token_ids = (END,)

    def _cases(self):
        """Only what the processor lets a model generate has a next step."""
        histories = [(), *map(spelled, ("y", "n", "ye")), (*spelled("yes"), END)]
        return [
            case._replace(output_ids=output)
            for case in super()._cases()[::4]
            for output in histories
            if output != spelled("n") or "no" in case.params["choices"]
        ]


def spelled(text):
    """Return a token for each byte."""
    tokens = vocabulary_of(TOKENIZER).tokens
    return tuple(tokens.index(bytes([byte])) for byte in text.encode())


def allowed(choices, output_ids, **more):
    request = FakeRequest([1], output_ids, tokenizer=TOKENIZER, eos_token_ids={END})
    custom_params = request.custom_params({"choices": choices, **more})
    row = ChoiceLogitProcessor()(torch.zeros(1, VOCAB_SIZE), [custom_params])[0]
    return {*(row > -torch.inf).nonzero()[:, 0].tolist()}


@pytest.mark.parametrize("spell", [spelled, lambda text: TOKENIZER.encode(text).ids])
def test_a_choice_ends_with_the_end_tokens_of_the_model_however_it_was_spelled(spell):
    assert allowed(["yes", "不是"], spell("yes")) == {END}
    assert allowed(["yes", "不是"], spell("不是")) == {END}
    assert allowed(["yes"], spell("yes"), eos_token_ids=[7, 8]) == {7, 8}
    assert allowed(["yes"], [*spell("yes"), END]) == {END}


def test_a_choice_that_another_begins_with_may_end_or_go_on():
    tokens = vocabulary_of(TOKENIZER).tokens
    found = allowed(["yes", "yesterday"], spelled("yes"))

    assert END in found
    assert {tokens[token_id] for token_id in found - {END}} >= {b"t"}
    assert all(b"terday".startswith(tokens[token_id]) for token_id in found - {END})


def test_what_is_none_of_the_choices_ends_the_request():
    with pytest.raises(Contradiction, match="continues no choice"):
        allowed(["yes"], spelled("no"))


def test_without_known_end_tokens_choices_are_refused():
    params = ChoiceLogitProcessor.parse_params({"choices": ["yes"]})

    with pytest.raises(InvalidParameter, match="eos_token_ids"):
        ChoiceLogitProcessor.fit_params(params, ServedModel(TOKENIZER, VOCAB_SIZE))
