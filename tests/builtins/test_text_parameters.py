"""Processors that turn a text into tokens of the served model once and for all."""

import pytest
import tokenizers
import torch

from sglang_lp.builtins import DisallowedTokensLogitsProcessor, ForcedSequenceLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.testing import FakeRequest, ProcessorContract, run
from sglang_lp.vocabulary import vocabulary_of
from support.trained import byte_level

TOKENIZER = byte_level(["Sure, here is the list: the cat, the mat 😀"] * 9, 290)
VOCAB_SIZE = 320


def sentencepiece_like():
    """Return a tokenizer that writes a space before every text, and takes it away again."""
    pieces = ["▁Sure", "Sure", "▁", "S", "u", "r", "e", "!", "▁S", "re"]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {piece: token_id for token_id, piece in enumerate(pieces)},
            [("▁", "S"), ("r", "e")],
            unk_token="!",
        )
    )
    made.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    return made


class TestDisallowedTexts(ProcessorContract):
    processor = DisallowedTokensLogitsProcessor
    valid_params = ({"texts": ["the", "😀"]}, {"texts": ["e"], "token_ids": [5]})
    invalid_params = (
        ({"texts": []}, "texts"),
        ({"texts": [""]}, "texts"),
        ({"texts": ["a" * 257]}, "texts"),
        ({"texts": ["\udc80"]}, "texts"),
    )
    tokenizer = TOKENIZER


class TestForcedText(ProcessorContract):
    processor = ForcedSequenceLogitProcessor
    valid_params = ({"text": "the list"}, {"text": "😀", "eos_token_ids": [0]})
    invalid_params = (
        ({"text": ""}, "text"),
        ({"text": "a" * 4097}, "text"),
        ({"text": "\udc80"}, "text"),
        ({"text": "a", "token_ids": [1]}, "text"),
    )
    tokenizer = TOKENIZER


def fitted(processor, params, tokenizer, vocab_size=VOCAB_SIZE):
    return processor.fit_params(processor.parse_params(params), tokenizer, vocab_size)


def test_every_token_that_holds_a_text_is_banned_and_no_other():
    params = {"texts": ["he", "😀"], "token_ids": [7]}
    custom_params = FakeRequest([], tokenizer=TOKENIZER).custom_params(params)

    row = DisallowedTokensLogitsProcessor()(torch.zeros(1, VOCAB_SIZE), [custom_params])[0]

    tokens = vocabulary_of(TOKENIZER).tokens
    holding = {i for i, token in enumerate(tokens) if b"he" in token or "😀".encode() in token}
    assert len(holding) > 3
    assert {i for i, logit in enumerate(row.tolist()) if logit == -torch.inf} == holding | {7}


def test_a_token_without_a_logit_is_not_banned():
    every = fitted(DisallowedTokensLogitsProcessor, {"texts": ["he"]}, TOKENIZER).token_ids
    some = fitted(DisallowedTokensLogitsProcessor, {"texts": ["he"]}, TOKENIZER, every[-1])

    assert some.token_ids == every[:-1]


@pytest.mark.parametrize("text", ["Sure, here is", " the cat", "é\n\n😀", "<|end|>"])
def test_an_answer_begins_with_the_forced_text(text):
    played = run(
        ForcedSequenceLogitProcessor,
        {"text": text},
        [1],
        lambda _: [0.0] * VOCAB_SIZE,
        steps=20,
        vocab_size=VOCAB_SIZE,
        tokenizer=TOKENIZER,
    )

    assert vocabulary_of(TOKENIZER).text(played.token_ids).startswith(text.encode())


def test_a_forced_text_has_the_tokens_that_the_tokenizer_writes_it_with():
    params = fitted(ForcedSequenceLogitProcessor, {"text": "here is the list"}, TOKENIZER)

    assert [*params.token_ids] == TOKENIZER.encode("here is the list").ids


def test_a_space_that_the_tokenizer_puts_before_is_not_forced():
    tokenizer = sentencepiece_like()
    assert vocabulary_of(tokenizer).text(tokenizer.encode("Sure").ids) == b" Sure"

    params = fitted(ForcedSequenceLogitProcessor, {"text": "Sure"}, tokenizer)

    assert params.token_ids == (1,)


@pytest.mark.parametrize(
    ("processor", "params"),
    [
        (ForcedSequenceLogitProcessor, {"text": "Sur\t"}),
        (DisallowedTokensLogitsProcessor, {"texts": ["\t"]}),
    ],
)
def test_a_text_that_no_tokens_spell_is_refused(processor, params):
    with pytest.raises(InvalidParameter, match="that the served model can write"):
        fitted(processor, params, sentencepiece_like())


@pytest.mark.parametrize(
    ("processor", "params"),
    [
        (ForcedSequenceLogitProcessor, {"text": "a"}),
        (DisallowedTokensLogitsProcessor, {"texts": ["a"]}),
    ],
)
def test_without_a_tokenizer_a_text_is_refused(processor, params):
    with pytest.raises(InvalidParameter, match="no tokenizer"):
        fitted(processor, params, None)
