"""Processors that turn a text into tokens of the served model once and for all."""

import random
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast

from sglang_lp.builtins import (
    AllowedTokensLogitProcessor,
    ChoiceLogitProcessor,
    DisallowedTokensLogitsProcessor,
    DRYLogitProcessor,
    ForcedSequenceLogitProcessor,
    ForcedWordsLogitProcessor,
    GenLengthLogitProcessor,
    MinLengthLogitProcessor,
    ThinkingBudgetLogitProcessor,
    TriggerPhraseLogitProcessor,
)
from sglang_lp.errors import InvalidParameter
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest, ProcessorContract, run
from sglang_lp.text.vocabulary import vocabulary_of
from support.models.vocabularies import byte_level

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
    valid_params = (
        {"texts": ["the", "😀"]},
        {"texts": ["e"], "token_ids": [5]},
        {"unmapped": True},
        {"unmapped": True, "texts": ["e"]},
    )
    invalid_params = (
        ({"unmapped": False}, "token_ids"),
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


class TestAllowedTexts(ProcessorContract):
    processor = AllowedTokensLogitProcessor
    valid_params = ({"texts": ["the", "e"]}, {"texts": ["e"], "token_ids": [5]})
    invalid_params = (({"texts": []}, "texts"), ({"texts": [""]}, "texts"))
    tokenizer = TOKENIZER
    eos_token_ids = (0,)


class TestWords(ProcessorContract):
    processor = ForcedWordsLogitProcessor
    valid_params = (
        {"words": ["the list", "cat"]},
        {"words": ["he", "the", "the cat"], "eos_token_ids": [1, 2]},
        {"words": ["😀"], "within_tokens": 20},
    )
    invalid_params = (
        ({"words": []}, "words"),
        ({"words": [""]}, "words"),
        ({"words": ["\udc80"]}, "words"),
        ({"words": ["a" * 256] * 17}, "words"),
        ({"words": ["a"], "lengths": [1]}, "token_ids"),
    )
    tokenizer = TOKENIZER
    eos_token_ids = (1,)
    token_ids = TOKENIZER.encode("the list cat").ids


class TestTriggerAndPhrase(ProcessorContract):
    processor = TriggerPhraseLogitProcessor
    valid_params = (
        {"trigger": "the", "phrase": "list"},
        {"trigger": "\n", "phrase": " 😀", "max_times": 3},
        {"phrase": "the end"},
    )
    invalid_params = (
        ({"trigger": "a" * 257, "phrase": "b"}, "trigger"),
        ({"trigger": "a"}, "phrase"),
        ({"trigger": "\udc80", "phrase": "b"}, "trigger"),
        ({"trigger": "a", "phrase": "\ufffd"}, "phrase"),
        ({"trigger": "a", "before_token_ids": [3], "phrase": "b"}, "before_token_ids"),
    )
    tokenizer = TOKENIZER
    eos_token_ids = (1,)
    token_ids = TOKENIZER.encode("the\n").ids


class TestBreakers(ProcessorContract):
    processor = DRYLogitProcessor
    valid_params = ({}, {"dry_sequence_breakers": ["the", ","]}, {"dry_sequence_breakers": []})
    invalid_params = (
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["a"] * 65}, "dry_sequence_breakers"),
        (
            {"dry_sequence_breakers": ["a"], "dry_sequence_breaker_ids": [5]},
            "dry_sequence_breakers",
        ),
    )
    tokenizer = TOKENIZER
    token_ids = TOKENIZER.encode("the mat, the:").ids


IDS = {"thinking_budget": 2, "thinking_start_token_id": 3, "thinking_end_token_id": 4}


class TestClosing(ProcessorContract):
    processor = ThinkingBudgetLogitProcessor
    valid_params = ({**IDS, "closing": " the list"}, {**IDS, "closing": "😀"})
    invalid_params = (
        ({**IDS, "closing": ""}, "closing"),
        ({**IDS, "closing": "a" * 1025}, "closing"),
        ({**IDS, "closing": "\udc80"}, "closing"),
        ({**IDS, "closing": "a", "closing_token_ids": [5]}, "closing"),
    )
    tokenizer = TOKENIZER
    token_ids = (3, 4)


def fitted(processor, params, tokenizer, vocab_size=VOCAB_SIZE, eos_token_ids=()):
    served = ServedModel(tokenizer, vocab_size, eos_token_ids)
    return processor.fit_params(processor.parse_params(params), served)


def test_every_token_that_holds_a_text_is_banned_and_no_other():
    params = {"texts": ["he", "😀"], "token_ids": [7]}
    custom_params = FakeRequest([], tokenizer=TOKENIZER).custom_params(params)

    row = DisallowedTokensLogitsProcessor()(torch.zeros(1, VOCAB_SIZE), [custom_params])[0]

    tokens = vocabulary_of(TOKENIZER).tokens
    holding = {i for i, token in enumerate(tokens) if b"he" in token or "😀".encode() in token}
    assert len(holding) > 3
    assert {i for i, logit in enumerate(row.tolist()) if logit == -torch.inf} == holding | {7}


def test_the_ids_that_are_no_token_are_banned_and_none_that_ends_an_answer():
    made = byte_level(["the cat"] * 9, 270)
    made.add_tokens(["<think>"])
    made.add_special_tokens(["<|im_end|>"])
    size = made.get_vocab_size()

    params = {"unmapped": True, "token_ids": [7]}
    for tokenizer in (made, PreTrainedTokenizerFast(tokenizer_object=made)):
        found = fitted(
            DisallowedTokensLogitsProcessor, params, tokenizer, size + 9, eos_token_ids=(size + 2,)
        )

        assert {*found.token_ids} == {7, *range(size, size + 9)} - {size + 2}
        assert not found.unmapped


def test_only_the_server_knows_how_many_logits_are_no_token():
    found = fitted(DisallowedTokensLogitsProcessor, {"unmapped": True}, TOKENIZER, None)

    assert found.unmapped


def test_a_token_without_a_logit_is_not_banned():
    every = fitted(DisallowedTokensLogitsProcessor, {"texts": ["he"]}, TOKENIZER).token_ids
    some = fitted(DisallowedTokensLogitsProcessor, {"texts": ["he"]}, TOKENIZER, every[-1])

    assert some.token_ids == every[:-1]


@pytest.mark.parametrize("text", ["Sure, here is", " the cat", "é\n\n😀", "<|end"])
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


def test_after_the_first_word_a_forced_text_has_the_tokens_that_the_tokenizer_writes():
    tokenizer = sentencepiece_like()
    own = tokenizer.encode("Sure Sure").ids

    params = fitted(ForcedSequenceLogitProcessor, {"text": "Sure Sure"}, tokenizer)

    assert [*params.token_ids] == [1, *own[len(own) // 2 :]]
    assert vocabulary_of(tokenizer).text(params.token_ids) == b"Sure Sure"


@pytest.mark.parametrize(
    ("processor", "params"),
    [
        (ForcedSequenceLogitProcessor, {"text": "Sur\t"}),
        (DisallowedTokensLogitsProcessor, {"texts": ["\t"]}),
        (TriggerPhraseLogitProcessor, {"trigger": "\t", "phrase": "Sure"}),
        (TriggerPhraseLogitProcessor, {"trigger": "Sure", "phrase": "\t"}),
        (ChoiceLogitProcessor, {"choices": ["Sure", "Sur\t"]}),
        (ForcedWordsLogitProcessor, {"words": ["Sur\t"], "eos_token_ids": [1]}),
    ],
)
def test_a_text_that_no_tokens_spell_is_refused(processor, params):
    with pytest.raises(InvalidParameter, match="that the served model can write"):
        fitted(processor, params, sentencepiece_like())


@pytest.mark.parametrize(
    ("processor", "params"),
    [
        (ForcedSequenceLogitProcessor, {"text": "Sure"}),
        (TriggerPhraseLogitProcessor, {"trigger": "a", "phrase": "Sure"}),
        (ForcedWordsLogitProcessor, {"words": ["Sure"], "eos_token_ids": [1]}),
        (GenLengthLogitProcessor, {"bias": 1.0, "text": "Sure"}),
        (ThinkingBudgetLogitProcessor, {"thinking_budget": 2, "closing": "Sure"}),
    ],
)
def test_a_text_whose_tokens_have_no_logit_is_refused(processor, params):
    tokenizer = byte_level(["a"], 258)
    tokenizer.add_tokens(["Sure"])
    first = tokenizer.token_to_id("Sure")

    with pytest.raises(InvalidParameter, match=r"(text|phrase|words|closing) of .*'Sure'"):
        fitted(processor, params, tokenizer, first)


@pytest.mark.parametrize(
    ("processor", "params"),
    [
        (ForcedSequenceLogitProcessor, {"text": "a"}),
        (DisallowedTokensLogitsProcessor, {"texts": ["a"]}),
        (DisallowedTokensLogitsProcessor, {"unmapped": True}),
        (AllowedTokensLogitProcessor, {"texts": ["a"]}),
        (ChoiceLogitProcessor, {"choices": ["a"]}),
        (ForcedWordsLogitProcessor, {"words": ["a"], "eos_token_ids": [1]}),
        (TriggerPhraseLogitProcessor, {"trigger": "a", "phrase_token_ids": [1]}),
        (TriggerPhraseLogitProcessor, {"trigger_token_ids": [1], "phrase": "a"}),
    ],
)
def test_without_a_tokenizer_a_text_is_refused(processor, params):
    with pytest.raises(InvalidParameter, match="no tokenizer"):
        fitted(processor, params, None)


def test_the_tokens_that_are_a_text_are_allowed_and_those_that_end_an_answer():
    params = {"texts": ["the", " the"], "token_ids": [7]}
    played = fitted(AllowedTokensLogitProcessor, params, TOKENIZER, eos_token_ids=(0,))

    tokens = vocabulary_of(TOKENIZER).tokens
    assert {tokens[token_id] for token_id in played.token_ids} == {b"the", b" the", b"", tokens[7]}


def test_a_text_of_several_tokens_is_not_allowed_as_one():
    with pytest.raises(InvalidParameter, match="ChoiceLogitProcessor"):
        fitted(AllowedTokensLogitProcessor, {"texts": ["the list"]}, TOKENIZER)


def test_a_trigger_is_found_whichever_tokens_spell_it():
    tokens = vocabulary_of(TOKENIZER).tokens
    spelled = [tokens.index(bytes([byte])) for byte in b"<the>"]
    for script in (spelled, TOKENIZER.encode("<the>").ids):
        played = run(
            TriggerPhraseLogitProcessor,
            {"trigger": "the", "phrase": "!list"},
            [1],
            script,
            steps=12,
            vocab_size=VOCAB_SIZE,
            tokenizer=TOKENIZER,
        )
        assert (
            vocabulary_of(TOKENIZER)
            .text(played.token_ids)
            .startswith((b"<the!list", b"<the>!list"))
        )


def test_a_phrase_comes_before_the_end_tokens_of_the_model():
    played = run(
        TriggerPhraseLogitProcessor,
        {"phrase": "list"},
        [1],
        [5, 0, 6],
        steps=6,
        vocab_size=VOCAB_SIZE,
        tokenizer=TOKENIZER,
        eos_token_ids={0},
    )

    assert b"list" in vocabulary_of(TOKENIZER).text(played.token_ids)
    assert played.logits[0][0] == -torch.inf


def test_a_phrase_may_not_begin_with_the_end():
    params = {"phrase": "Sure"}
    first = TOKENIZER.encode("Sure").ids[0]
    with pytest.raises(InvalidParameter, match="before_token_ids"):
        fitted(TriggerPhraseLogitProcessor, params, TOKENIZER, eos_token_ids=(first,))


def test_end_tokens_that_are_left_out_are_those_of_the_model():
    params = fitted(MinLengthLogitProcessor, {"min_tokens": 4}, None, eos_token_ids=(3, 5))
    given = {"min_tokens": 4, "eos_token_ids": [9]}

    assert params.eos_token_ids == (3, 5)
    assert fitted(MinLengthLogitProcessor, given, None, eos_token_ids=(3,)).eos_token_ids == (9,)
    with pytest.raises(InvalidParameter, match="neither the configuration"):
        fitted(MinLengthLogitProcessor, {"min_tokens": 4}, None)


@pytest.mark.parametrize(
    ("tokenizer", "configured", "known"),
    [
        (None, None, ()),
        (None, {2, 7}, (2, 7)),
        (SimpleNamespace(eos_token_id=5, additional_stop_token_ids=None), {2}, (2, 5)),
        (SimpleNamespace(eos_token_id=None, additional_stop_token_ids={6, 4}), None, (4, 6)),
        (SimpleNamespace(eos_token_id=5, additional_stop_token_ids={999}), {5}, (5,)),
    ],
)
def test_all_end_tokens_that_sglang_stops_at_are_known(tokenizer, configured, known):
    assert ServedModel.of(tokenizer, 10, configured).eos_token_ids == known


def split_at_random(some, text):
    """Return tokens that spell a text, cut wherever it happens to be."""
    tokens, token_ids = vocabulary_of(TOKENIZER).tokens, []
    while text:
        fitting = [i for i, token in enumerate(tokens) if token and text.startswith(token)]
        token_ids.append(some.choice(fitting))
        text = text[len(tokens[token_ids[-1]]) :]
    return token_ids


@pytest.mark.parametrize("seed", range(4))
def test_a_word_counts_however_it_is_spelled_and_nothing_else_does(seed):
    some = random.Random(seed)
    pool = ["the", "he", " the cat", "cat", "at, t", "😀", "t the"]
    ends_free = 0
    for _ in range(60):
        words = some.sample(pool, some.randint(1, 4))
        said = "".join(some.choices(["the", " ", "cat", ", ", "t", "😀", "ca"], k=6))
        token_ids = split_at_random(some, said.encode())
        request = FakeRequest([1], token_ids, tokenizer=TOKENIZER, eos_token_ids={0})
        custom_params = request.custom_params({"words": words})
        row = ForcedWordsLogitProcessor()(torch.zeros(1, VOCAB_SIZE), [custom_params])[0]

        is_free = bool(row[0] > -torch.inf)
        assert is_free == all(word in said for word in words)
        ends_free += is_free
    assert 5 < ends_free < 55


def test_the_words_that_are_missing_come_before_the_end():
    played = run(
        ForcedWordsLogitProcessor,
        {"words": [" the list", " cat 😀"]},
        [1],
        lambda _: [9.0] + [0.0] * (VOCAB_SIZE - 1),
        steps=20,
        vocab_size=VOCAB_SIZE,
        tokenizer=TOKENIZER,
        eos_token_ids={0},
    )

    answer = played.token_ids[: played.token_ids.index(0)]
    assert vocabulary_of(TOKENIZER).text(answer) == " the list cat 😀".encode()


def test_words_and_token_ids_are_not_given_together():
    params = {"words": ["a"], "token_ids": [1], "lengths": [1], "eos_token_ids": [2]}
    with pytest.raises(InvalidParameter, match="together"):
        fitted(ForcedWordsLogitProcessor, params, TOKENIZER)


def test_thinking_closes_with_the_text():
    played = run(
        ThinkingBudgetLogitProcessor,
        {**IDS, "closing": " the list 😀"},
        [3],
        [7] * 40,
        steps=20,
        vocab_size=VOCAB_SIZE,
        tokenizer=TOKENIZER,
    )

    inside = played.token_ids[: played.token_ids.index(4)]
    assert vocabulary_of(TOKENIZER).text(inside[2:]) == " the list 😀".encode()


def test_a_closing_that_opens_another_block_is_refused():
    first = TOKENIZER.encode(" the").ids[0]
    params = {**IDS, "thinking_start_token_id": first, "closing": " the list"}
    with pytest.raises(InvalidParameter, match="closing_token_ids"):
        fitted(ThinkingBudgetLogitProcessor, params, TOKENIZER)


def test_breakers_are_the_tokens_that_hold_a_text_by_default_those_of_llama_cpp():
    tokens = vocabulary_of(TOKENIZER).tokens

    def breakers(params, tokenizer=TOKENIZER):
        fit = fitted(DRYLogitProcessor, params, tokenizer)
        return fit.dry_sequence_breaker_ids

    assert {tokens[i] for i in breakers({})} == {t for t in tokens if {*t} & {*b'\n:"*'}}
    assert {tokens[i] for i in breakers({"dry_sequence_breakers": ["he"]})} == {
        t for t in tokens if b"he" in t
    }
    assert breakers({"dry_sequence_breakers": []}) == frozenset()
    assert breakers({"dry_sequence_breaker_ids": [7]}) == {7}
    assert breakers({}, None) == frozenset()
    with pytest.raises(InvalidParameter, match="no tokenizer"):
        breakers({"dry_sequence_breakers": ["a"]}, None)
