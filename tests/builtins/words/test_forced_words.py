"""Sequences that are all in the answer before it ends."""

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sglang_lp.builtins import ChainLogitProcessor, ForcedWordsLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.testing import FakeRequest, ProcessorContract, run

VOCAB = 7
ENDS = [5, 6]
tokens = st.integers(0, 3)  # 4 is in no word
words = st.lists(st.lists(tokens, min_size=1, max_size=4), min_size=1, max_size=5)


def asked(sequences, **more):
    return {
        "token_ids": [token_id for sequence in sequences for token_id in sequence],
        "lengths": [len(sequence) for sequence in sequences],
        "eos_token_ids": ENDS,
        **more,
    }


class TestContract(ProcessorContract):
    processor = ForcedWordsLogitProcessor
    valid_params = (
        asked([[7]]),
        asked([[3, 4, 3], [3, 4], [9, 9]], eos_token_ids=[*range(500, 1000)]),
        asked([[1, 2, 3], [2], [2]], within_tokens=5),
        asked([[1, 2], [2, 1]], within_tokens=12, eos_token_ids=[*range(500)][10:]),
    )
    invalid_params = (
        ({"lengths": [1], "eos_token_ids": [5]}, "token_ids"),
        ({"token_ids": [1], "eos_token_ids": [5]}, "lengths"),
        (asked([]), "token_ids"),
        (asked([[1, 2]], lengths=[1]), "lengths"),
        (asked([[1, 2]], lengths=[2, 0]), "lengths"),
        (asked([[1000]]), "token_ids"),
        (asked([[1] * 4097]), "token_ids"),
        (asked([[1]], eos_token_ids=[]), "eos_token_ids"),
        (asked([[1]], eos_token_ids=[1000]), "eos_token_ids"),
        (asked([[1, 2]], eos_token_ids=[9, 2]), "eos_token_ids"),
        (asked([[1]], within_tokens=0), "within_tokens"),
        (asked([[1, 2], [3]], within_tokens=2), "within_tokens"),
    )


def holds(output, word):
    return any(output[i : i + len(word)] == word for i in range(len(output)))


def expected(sequences, within, output, likeliest):
    """Say by definition what may come: one token, any but the ends, or any at all."""
    missing = []
    for word in sequences:
        if not holds(output, word) and word not in missing:
            missing.append(word)
    if not missing:
        return {*range(VOCAB)}
    first = missing[0]
    begun = max(n for n in range(len(first)) if output[len(output) - n :] == first[:n])
    last = within is not None and within - len(output) <= sum(map(len, missing))
    if begun or last or likeliest in ENDS:
        return {first[begun]}
    return {*range(VOCAB)} - {*ENDS}


@given(
    sequences=words,
    room=st.none() | st.integers(0, 12),
    prompt=st.lists(tokens, max_size=4),
    steps=st.lists(st.tuples(tokens, st.integers(0, VOCAB - 1)), min_size=1, max_size=25),
)
@example([[0, 1, 0, 0], [1, 0], [0, 1, 0, 1]], None, [0, 1], [(t, 4) for t in (0, 1, 0, 1, 0, 0)])
@example([[0, 0, 1], [0]], 0, [], [(0, 4), (0, 4), (0, 4), (1, 4), (0, 5)])
def test_every_step_is_as_the_rules_say_whatever_was_generated(sequences, room, prompt, steps):
    within = None if room is None else sum(map(len, sequences)) + room
    request = FakeRequest(prompt)
    custom_params = request.custom_params(asked(sequences, within_tokens=within))
    output = []

    for token_id, likeliest in steps:
        logits = torch.zeros(1, VOCAB)
        logits[0, likeliest] = 1
        row = ForcedWordsLogitProcessor()(logits, [custom_params])[0]
        possible = {i for i, logit in enumerate(row.tolist()) if logit > -torch.inf}
        assert possible == expected(sequences, within, output, likeliest)
        request.append(token_id)
        output.append(token_id)


@given(words, st.randoms(use_true_random=False))
def test_no_answer_ends_before_it_holds_every_word(sequences, random):
    def model(_token_ids):
        return [random.random() for _ in range(VOCAB)]

    output = run(
        ForcedWordsLogitProcessor, asked(sequences), [1], model, steps=60, vocab_size=VOCAB
    ).token_ids

    ends = [i for i, token_id in enumerate(output) if token_id in ENDS]
    assume(ends)
    assert all(holds(output[: ends[0]], word) for word in sequences)


@given(words, st.integers(0, 8), st.booleans(), st.randoms(use_true_random=False))
def test_every_word_is_there_in_time_whatever_the_model_wants(sequences, room, ending, random):
    def model(_token_ids):
        logits = [random.random() for _ in range(VOCAB)]
        logits[5] = 2.0 * ending
        return logits

    within = sum(map(len, sequences)) + room
    params = asked(sequences, within_tokens=within)
    output = run(
        ForcedWordsLogitProcessor, params, [1], model, steps=within, vocab_size=VOCAB
    ).token_ids

    assert all(holds(output, word) for word in sequences)


def test_a_model_that_wants_to_end_says_the_words_in_order_first_and_then_ends():
    played = run(
        ForcedWordsLogitProcessor, asked([[3, 1], [2]]), [3, 1], [4, 4] + ENDS * 4, steps=7
    )

    assert played.token_ids == [4, 4, 3, 1, 2, 6, 5]


def test_a_word_that_the_model_says_by_itself_is_not_said_again():
    played = run(ForcedWordsLogitProcessor, asked([[3], [2]]), [1], [2, 4, 3, 4, 5], steps=5)

    assert played.token_ids == [2, 4, 3, 4, 5]


def test_a_word_that_the_output_has_begun_is_gone_on_with():
    played = run(ForcedWordsLogitProcessor, asked([[3, 1, 2]]), [1], [4, 3, 4, 4, 5], steps=5)

    assert played.token_ids == [4, 3, 1, 2, 5]


def test_words_come_as_late_as_there_is_room_for_them():
    params = asked([[3, 1], [2]], within_tokens=6)

    assert run(ForcedWordsLogitProcessor, params, [1], [4] * 9, steps=9).token_ids == [
        *[4, 4, 4],
        *[3, 1, 2],
        *[4, 4, 4],
    ]


def test_a_word_begun_when_the_room_runs_out_is_not_begun_again():
    params = asked([[3, 1, 2], [2, 4]], within_tokens=6)

    played = run(ForcedWordsLogitProcessor, params, [1], [3, 0, 0, 0, 0, 0], steps=6)

    assert played.token_ids == [3, 1, 2, 4, 0, 0]


def test_it_does_not_look_any_more_when_the_words_are_there():
    looks = []

    class Watched(ForcedWordsLogitProcessor):
        def edit(self, request, edits):
            looks.append(request.position)
            super().edit(request, edits)

    run(Watched, asked([[3, 1]]), [1], [4, 3, 0, 4, 4, 4], steps=6)

    assert looks == [0, 1, 2, 3]


def test_it_is_a_link_of_a_chain():
    params = {"chain": ["BadWordsLogitProcessor", "ForcedWordsLogitProcessor"]}
    params |= {"0.token_ids": [4, 4], "0.lengths": [2]}
    params |= {f"1.{key}": value for key, value in asked([[3, 1]]).items()}

    played = run(ChainLogitProcessor, params, [1], [4, 4, 5, 5, 4, 5], steps=6)

    assert played.token_ids == [4, 0, 3, 1, 4, 5]


def test_words_that_end_the_answer_are_refused():
    with pytest.raises(InvalidParameter, match="in no word, got 5"):
        ForcedWordsLogitProcessor.parse_params(asked([[1, 5]]))


def test_too_little_room_is_refused():
    with pytest.raises(InvalidParameter, match="at least the 3 tokens"):
        ForcedWordsLogitProcessor.parse_params(asked([[1], [2, 3]], within_tokens=2))
