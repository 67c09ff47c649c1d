"""Words that are made likelier."""

import random

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import BiasWordsLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest, ProcessorContract, run
from sglang_lp.text.vocabulary import vocabulary_of
from support.models.vocabularies import byte_level

CORPUS = ["the foolish cat said foo to the food and fool", "der süße Bär aß in der Straße"] * 9
TOKENIZER = byte_level(CORPUS, 330)
TOKENS = vocabulary_of(TOKENIZER).tokens


class TestContract(ProcessorContract):
    processor = BiasWordsLogitProcessor
    valid_params = (
        {"words": [" foo"], "weights": [4.0]},
        {"words": ["foo", "food", "o"], "weights": [1, 2.5, 0.25], "max_times": 3},
        {"words": [" Bär", "Straße 😀"], "weights": [10_000, 1e-3]},
    )
    invalid_params = (
        ({"words": ["foo"]}, "weights"),
        ({"weights": [1.0]}, "words"),
        ({"words": [], "weights": []}, "words"),
        ({"words": [""], "weights": [1]}, "words"),
        ({"words": ["a", "a"], "weights": [1, 2]}, "words"),
        ({"words": ["a"] * 257, "weights": [1] * 257}, "words"),
        ({"words": ["ab" * 128 + str(i) for i in range(16)], "weights": [1] * 16}, "words"),
        ({"words": ["\ud800"], "weights": [1]}, "words"),
        ({"words": ["a", "b"], "weights": [1]}, "weights"),
        ({"words": ["a"], "weights": [0]}, "weights"),
        ({"words": ["a"], "weights": [-1]}, "weights"),
        ({"words": ["a"], "weights": [10_001]}, "weights"),
        ({"words": ["a"], "weights": ["1"]}, "weights"),
        ({"words": ["a"], "weights": [1], "max_times": 0}, "max_times"),
    )
    tokenizer = TOKENIZER
    token_ids = TOKENIZER.encode(CORPUS[0]).ids[:6]


def biases(words, weights, max_times, output):
    """Say by definition which tokens get which bias."""
    said = b"".join(TOKENS[token_id] for token_id in output)
    came = dict.fromkeys(words, 0)
    length = 0
    for token_id in output:
        ends = range(length + 1, length + len(TOKENS[token_id]) + 1)
        length += len(TOKENS[token_id])
        for word in words:
            came[word] += any(said[:end].endswith(word) for end in ends)
    pairs = zip(words, weights, strict=True)
    wanted = [(word, weight) for word, weight in pairs if came[word] < max_times]
    found = {}
    for word, weight in wanted:
        begun = max((word[:n] for n in range(len(word)) if said.endswith(word[:n])), key=len)
        for token_id, token in enumerate(TOKENS):
            for written in (token, begun + token):
                if token and word.startswith(written):
                    value = weight * len(written) / len(word)
                    found[token_id] = max(value, found.get(token_id, 0))
    return found


LETTERS = [TOKENIZER.token_to_id(letter) for letter in "fodca"]
PIECES = [i for i, token in enumerate(TOKENS) if token and set(token) <= set(b" foldcat")]
words = st.lists(
    st.one_of(
        st.sampled_from(["foo", "food", " foo", "oo", "the", "Bär", "cat said"]),
        st.text("fod", min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=5,
    unique=True,
)


@given(
    words,
    st.lists(st.sampled_from([*LETTERS, *PIECES]), max_size=12),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_the_next_parts_of_words_and_nothing_else_get_their_bias(texts, output, most, chance):
    weights = [chance.randint(1, 40) / 8 for _ in texts]
    params = {"words": texts, "weights": weights, "max_times": most}
    request = FakeRequest(TOKENIZER.encode("fo").ids, tokenizer=TOKENIZER)
    custom_params = request.custom_params(params)
    processor = BiasWordsLogitProcessor()

    for position in range(len(output) + 1):
        row = processor(torch.zeros(1, 330, dtype=torch.float64), [custom_params])[0]
        found = {i: value for i, value in enumerate(row.tolist()) if value}
        encoded = [text.encode() for text in texts]
        assert found == pytest.approx(biases(encoded, weights, most, output[:position]))
        if position < len(output):
            request.append(output[position])


def said(weight, max_times=1, words=(" foolish", "Straße")):
    """Return the answer of a model that nearly always has better ideas."""
    chance = random.Random(7)
    common = TOKENIZER.encode(" the cat said to the der in aß" * 3).ids

    def model(_token_ids):
        logits = [chance.gauss(0, 1) for _ in range(330)]
        for token_id in chance.choices(common, k=9):
            logits[token_id] += 3
        return logits

    params = {"words": [*words], "weights": [weight] * len(words), "max_times": max_times}
    played = run(
        BiasWordsLogitProcessor, params, [], model, steps=200, vocab_size=330, tokenizer=TOKENIZER
    )
    return b"".join(TOKENS[i] for i in played.token_ids).decode(errors="replace")


@pytest.mark.parametrize("max_times", [1, 3])
def test_a_heavy_word_comes_as_often_as_it_may_be_pushed_and_does_not_loop(max_times):
    assert "foolish" not in said(0.001)

    text = said(30.0, max_times)

    for word in (" foolish", "Straße"):
        assert max_times <= text.count(word) <= max_times + 1


def test_a_word_that_letters_began_is_pushed_to_its_end():
    spelled = [TOKENIZER.token_to_id(letter) for letter in "foolis"]
    request = FakeRequest([], spelled, tokenizer=TOKENIZER)
    params = {"words": ["foolish"], "weights": [4.0]}

    row = BiasWordsLogitProcessor()(torch.zeros(1, 330), [request.custom_params(params)])[0]

    assert row[TOKENIZER.token_to_id("h")] == 4.0
    assert row[TOKENIZER.token_to_id("f")] == pytest.approx(4 / 7)


def test_a_word_that_is_not_pushed_any_more_gives_way_to_one_that_is():
    output = [TOKENIZER.token_to_id(letter) for letter in "foodfoo"]
    request = FakeRequest([], output, tokenizer=TOKENIZER)
    params = {"words": ["food", "oops"], "weights": [4.0, 2.0]}

    row = BiasWordsLogitProcessor()(torch.zeros(1, 330), [request.custom_params(params)])[0]

    assert row[TOKENIZER.token_to_id("d")] == 0
    assert row[TOKENIZER.token_to_id("p")] == pytest.approx(2 * 3 / 4)


def test_the_longer_beginning_of_another_word_hides_no_word():
    output = [TOKENIZER.token_to_id(letter) for letter in "ab"]
    request = FakeRequest([], output, tokenizer=TOKENIZER)
    params = {"words": ["abc", "bd"], "weights": [3.0, 2.0]}

    row = BiasWordsLogitProcessor()(torch.zeros(1, 330), [request.custom_params(params)])[0]

    assert row[TOKENIZER.token_to_id("c")] == 3
    assert row[TOKENIZER.token_to_id("d")] == 2


def test_a_fork_leaves_the_request_where_it_was():
    request = FakeRequest([], tokenizer=TOKENIZER)
    processor = BiasWordsLogitProcessor()
    request.params = processor.parse_params({"words": ["fo", "food"], "weights": [1, 1]})
    request.state = processor.start(request)
    fork = FakeRequest([])
    fork.params, fork.state = request.params, processor.fork(request)
    processor.advance(fork, LETTERS[:2])

    assert (request.state.place, request.state.wanted, request.state.times) == (0, 3, {})
    assert (fork.state.wanted, fork.state.times) == (2, {0: 1})


def test_words_that_the_model_cannot_write_are_refused():
    ascii_only = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, []))
    ascii_only.decoder = tokenizers.decoders.ByteLevel()
    params = BiasWordsLogitProcessor.parse_params({"words": ["a", "abc"], "weights": [1, 1]})

    with pytest.raises(InvalidParameter, match="'abc', which no tokens spell"):
        BiasWordsLogitProcessor.fit_params(params, ServedModel(ascii_only, 3))
    with pytest.raises(InvalidParameter, match="the server has no tokenizer"):
        BiasWordsLogitProcessor.fit_params(params, ServedModel(None, 3))


def test_no_token_is_pushed_after_which_the_word_cannot_be_finished():
    odd = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "ab": 1, "bc": 2, "abc": 3}, []))
    odd.decoder = tokenizers.decoders.ByteLevel()
    request = FakeRequest([], tokenizer=odd)
    params = request.custom_params({"words": ["abc"], "weights": [3.0]})

    row = BiasWordsLogitProcessor()(torch.zeros(1, 4), [params])[0]

    assert row.tolist() == [1.0, 0.0, 0.0, 3.0]
