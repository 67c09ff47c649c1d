"""Words that are never generated."""

import random

import pytest
import tokenizers
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_lp.builtins import BadWordsLogitProcessor
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest, ProcessorContract, run
from sglang_lp.text.vocabulary import vocabulary_of
from support.models.vocabularies import byte_level

tokens = st.integers(0, 4)
words = st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=6)


CORPUS = ["the foolish cat said foo to the food and fool", "der süße Bär aß in der Straße"] * 9
TOKENIZER = byte_level(CORPUS, 330)


class TestContract(ProcessorContract):
    processor = BadWordsLogitProcessor
    valid_params = (
        {"token_ids": [7], "lengths": [1]},
        {"token_ids": [3, 4, 3, 3, 4, 3, 4], "lengths": [2, 3, 2]},
        {"token_ids": [1, 2, 3, 1, 2, 9, 2], "lengths": [3, 3, 1]},
        {"words": ["foo", "Bär"]},
        {"words": ["STRASSE"], "ignore_case": True, "across_prompt": True},
        {"words": ["o"], "token_ids": [1], "lengths": [1]},
        {"words": ["Bär"], "normalize": True},
        {"words": ["Bär"], "normalize": True, "ignore_case": True},
    )
    invalid_params = (
        ({"token_ids": [1]}, "lengths"),
        ({"lengths": [1]}, "token_ids"),
        ({"token_ids": [], "lengths": []}, "token_ids"),
        ({"token_ids": [1, 2], "lengths": [1]}, "lengths"),
        ({"token_ids": [1, 2], "lengths": [2, 0]}, "lengths"),
        ({"token_ids": [1, 1_000_000], "lengths": [2]}, "token_ids"),
        ({"token_ids": [1] * 4097, "lengths": [4097]}, "token_ids"),
        ({}, "words"),
        ({"words": []}, "words"),
        ({"words": [""]}, "words"),
        ({"words": "foo"}, "words"),
        ({"words": ["a" * 257]}, "words"),
        ({"words": ["a" * 10_000]}, "words"),
        ({"words": ["ab" * 128] * 129}, "words"),
        ({"words": ["\ud800"]}, "words"),
        ({"words": ["a\ufffd"]}, "words"),
        ({"token_ids": [1], "lengths": [1], "ignore_case": True}, "ignore_case"),
        ({"token_ids": [1], "lengths": [1], "across_prompt": True}, "across_prompt"),
        ({"token_ids": [1], "lengths": [1], "normalize": True}, "normalize"),
    )
    tokenizer = TOKENIZER
    token_ids = TOKENIZER.encode(CORPUS[0]).ids[:6]


def flat(sequences):
    return {
        "token_ids": [token_id for sequence in sequences for token_id in sequence],
        "lengths": [len(sequence) for sequence in sequences],
    }


def completing(sequences, output):
    """Say by definition which tokens complete a sequence."""
    return {
        sequence[-1]
        for sequence in sequences
        if output[len(output) - len(sequence) + 1 :] == sequence[:-1]
    }


@given(words, st.lists(tokens, max_size=30), st.lists(tokens, max_size=5))
@example([[1, 1, 1, 1], [1, 1, 2], [1, 3]], [1, 1, 1, 1], [])
def test_exactly_the_tokens_that_complete_a_word_are_banned(sequences, output, prompt):
    request = FakeRequest(prompt)
    custom_params = request.custom_params(flat(sequences))
    processor = BadWordsLogitProcessor()

    for position in range(len(output) + 1):
        row = processor(torch.zeros(1, 6), [custom_params])[0]
        banned = {i for i, logit in enumerate(row.tolist()) if logit == -torch.inf}
        assert banned == completing(sequences, output[:position])
        if position < len(output):
            request.append(output[position])


@given(words, st.randoms(use_true_random=False))
def test_no_answer_ever_holds_a_word(sequences, random):
    def model(_token_ids):
        return [random.random() for _ in range(6)]  # 5 is in no word

    output = run(
        BadWordsLogitProcessor, flat(sequences), [1], model, steps=40, vocab_size=6
    ).token_ids

    for sequence in sequences:
        found = (output[i : i + len(sequence)] == sequence for i in range(len(output)))
        assert not any(found)


def said_by_chance(seed, params, prompt="", steps=60):
    """Return the answer of a random model that prefers forbidden words."""
    chance = random.Random(seed)
    liked = TOKENIZER.encode(" ".join(CORPUS[:2])).ids

    def model(_token_ids):
        logits = [chance.random() for _ in range(400)]
        for token_id in chance.choices(liked, k=9):
            logits[token_id] += 1
        return logits

    prompt_ids = TOKENIZER.encode(prompt).ids
    return run(
        BadWordsLogitProcessor,
        params,
        prompt_ids,
        model,
        steps=steps,
        vocab_size=400,
        tokenizer=TOKENIZER,
    ).token_ids


@pytest.mark.parametrize("seed", range(5))
def test_no_text_ever_holds_a_word(seed):
    words = ["foo", "the", "Straße", "d "]

    def said(params):
        return vocabulary_of(TOKENIZER).text(said_by_chance(seed, params)).decode(errors="replace")

    assert any(word in said({"words": ["\0"]}) for word in words)
    assert not any(word in said({"words": words}) for word in words)
    folded = said({"words": words, "ignore_case": True}).casefold()
    assert not any(word.casefold() in folded for word in words)


def test_a_word_that_other_tokens_spell_is_banned_too():
    request = FakeRequest([], tokenizer=TOKENIZER)
    custom_params = request.custom_params({"words": ["foo"]})
    spelled = [TOKENIZER.token_to_id(letter) for letter in "foo"]
    for token_id in spelled[:-1]:
        BadWordsLogitProcessor()(torch.zeros(1, 400), [custom_params])
        request.append(token_id)

    row = BadWordsLogitProcessor()(torch.zeros(1, 400), [custom_params])[0]

    assert row[spelled[-1]] == -torch.inf


@pytest.mark.parametrize(("across", "banned"), [(False, False), (True, True)])
def test_a_word_that_the_prompt_begins_counts_if_asked(across, banned):
    prompt_ids = TOKENIZER.encode("the fo").ids
    request = FakeRequest(prompt_ids, tokenizer=TOKENIZER)
    custom_params = request.custom_params({"words": ["foo"], "across_prompt": across})

    row = BadWordsLogitProcessor()(torch.zeros(1, 400), [custom_params])[0]

    assert (row[TOKENIZER.token_to_id("o")] == -torch.inf) == banned


def fit(params, tokenizer=TOKENIZER):
    BadWordsLogitProcessor.fit_params(
        BadWordsLogitProcessor.parse_params(params), ServedModel(tokenizer, 400)
    )


def test_a_server_without_a_tokenizer_says_what_is_missing():
    with pytest.raises(InvalidParameter, match=r"^words of .*: the server has no tokenizer"):
        fit({"words": ["foo"]}, tokenizer=None)
    fit({"token_ids": [1], "lengths": [1]}, tokenizer=None)


def test_words_that_leave_nothing_to_write_are_refused():
    ascii_only = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, []))
    ascii_only.decoder = tokenizers.decoders.ByteLevel()

    with pytest.raises(InvalidParameter, match="leave the model something to write"):
        fit({"words": ["a", "b"]}, ascii_only)
    with pytest.raises(InvalidParameter, match="'c', which no tokens spell"):
        fit({"words": ["a", "c"]}, ascii_only)
    fit({"words": ["a", "bb"]}, ascii_only)


def test_a_dead_end_names_the_word():
    two = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    two.decoder = tokenizers.decoders.ByteLevel()
    request = FakeRequest([], [0, 1], tokenizer=two)
    custom_params = request.custom_params({"words": ["aba", "bb"]})

    with pytest.raises(RequestError, match=r"after 'ab' every token .* such as 'aba'"):
        BadWordsLogitProcessor()(torch.zeros(1, 2), [custom_params])


def test_a_fork_leaves_the_request_where_it_was():
    request = FakeRequest([], tokenizer=TOKENIZER)
    processor = BadWordsLogitProcessor()
    request.params = processor.parse_params({"words": ["foo"]})
    request.state = processor.start(request)
    fork = FakeRequest([])
    fork.state = processor.fork(request)
    processor.advance(fork, [TOKENIZER.token_to_id("f")])

    assert (request.state.ends, fork.state.ends) == ((b"",), (b"f",))


@pytest.mark.parametrize("written", ["cr\u00e8me", "cre\u0300me", "cre\u0340me"])
@pytest.mark.parametrize("others", [{}, {"ignore_case": True}, {"whole_words": True}])
def test_with_normalize_a_word_comes_out_in_no_form(written, others):
    vocabulary = vocabulary_of(TOKENIZER)
    script = vocabulary.spell(f" {written} ".encode())

    def said(**params):
        params = {"words": ["cr\u00e8me"], **others, **params}
        played = run(
            *(BadWordsLogitProcessor, params, [], script),
            steps=len(script),
            vocab_size=330,
            tokenizer=TOKENIZER,
            eos_token_ids=(0,),
        )
        return vocabulary.text(played.token_ids).decode(errors="replace")

    assert (f" {written} " in said()) == (written != "cr\u00e8me")
    assert f" {written} " not in said(normalize=True)


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        (["\u00e8" * 9], "at most 1000 canonically"),
        ([f"e{chr(0x341) * 255}"], "at most 1000 canonically"),
        (["\u00e8" * 5 + "a" * 200], "at most 32768 bytes"),
    ],
)
def test_words_of_too_many_forms_are_refused(words, limit):
    params = BadWordsLogitProcessor.parse_params({"words": words, "normalize": True})

    with pytest.raises(InvalidParameter, match=f"words of .*: expected words that have {limit}"):
        BadWordsLogitProcessor.fit_params(params, ServedModel(TOKENIZER, 330))
