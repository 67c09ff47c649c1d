"""Repetition at the end of the output."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_lp.builtins import LoopBreakerLogitProcessor
from sglang_lp.builtins.repetition.novelty import Novelty, few_are_new
from sglang_lp.testing import FakeRequest, ProcessorContract, run

tokens = st.integers(0, 2)


class TestContract(ProcessorContract):
    processor = LoopBreakerLogitProcessor
    valid_params = (
        {},
        {"preset": "structured-output"},
        {"preset": "code", "min_pattern_size": 1, "action": "end"},
        {"max_pattern_size": 1, "min_count": 2},
        {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 2, "action": "ban"},
        {"max_pattern_size": 40, "min_count": 3},
        {"min_new_share": 0.5, "ngram_size": 2, "window_size": 6},
        {"min_new_share": 1, "window_size": 8, "action": "truncate"},
    )
    invalid_params = (
        ({"preset": "chat"}, "preset"),
        ({"preset": "structured-output", "min_pattern_size": 21}, "min_pattern_size"),
        ({"min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 4}, "min_count"),
        ({"max_pattern_size": 0, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 1025, "min_count": 2}, "max_pattern_size"),
        ({"max_pattern_size": 4, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 4, "min_pattern_size": 5, "min_count": 2}, "min_pattern_size"),
        ({"max_pattern_size": 4, "min_count": 2, "action": "stop"}, "action"),
        ({"min_new_share": 0}, "min_new_share"),
        ({"min_new_share": 1.1}, "min_new_share"),
        ({"min_new_share": 0.2, "ngram_size": 17}, "ngram_size"),
        ({"min_new_share": 0.2, "window_size": 513}, "window_size"),
        ({"min_new_share": 0.2, "ngram_size": 9, "window_size": 8}, "window_size"),
        ({"ngram_size": 4}, "ngram_size"),
        ({"window_size": 40}, "window_size"),
    )
    token_ids = (1, 2)


def repeated(output, min_size, max_size, min_count):
    """Say by definition which pattern sizes are repeated at the end of the output."""
    return [
        size
        for size in range(min_size, max_size + 1)
        if len(output) >= size * min_count
        and output[len(output) - size * min_count :] == output[-size:] * min_count
    ]


@given(
    pieces=st.lists(st.tuples(st.lists(tokens, min_size=1, max_size=5), st.integers(1, 5))),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
    min_count=st.integers(2, 4),
)
@example(pieces=[([1], 5)], sizes=[1, 2], min_count=2)
@example(pieces=[([1, 2], 3), ([1], 1)], sizes=[2, 4], min_count=3)
def test_the_tokens_that_go_on_with_a_loop_are_banned(pieces, sizes, min_count):
    output = [token_id for piece, times in pieces for token_id in piece * times]
    params = {
        "min_pattern_size": sizes[0],
        "max_pattern_size": sizes[1],
        "min_count": min_count,
    }
    request = FakeRequest(output)  # a prompt does not count
    custom_params = request.custom_params(params)
    processor = LoopBreakerLogitProcessor()

    for position in range(len(output) + 1):
        row = processor(torch.zeros(1, 4), [custom_params])[0].tolist()
        so_far = output[:position]
        expected = {so_far[-size] for size in repeated(so_far, *sizes, min_count)}
        assert {i for i, logit in enumerate(row) if logit} == expected
        if position < len(output):
            request.append(output[position])


def test_a_model_in_a_loop_gets_out_of_it():
    def model(token_ids):
        return [0, 1, 2, 3] if token_ids[-1] != 3 else [0, 1, 2, 1]

    played = run(
        LoopBreakerLogitProcessor,
        {"max_pattern_size": 2, "min_count": 3},
        [0],
        model,
        steps=12,
        vocab_size=4,
    )

    assert played.token_ids == [3, 2, 3, 2, 3, 2, 2, 3, 2, 3, 2, 3]


def test_a_row_sleeps_until_the_smallest_pattern_can_be_a_loop(monkeypatch):
    asked = []
    edit = LoopBreakerLogitProcessor.edit

    def count(processor, request, edits):
        asked.append(request.position)
        edit(processor, request, edits)

    monkeypatch.setattr(LoopBreakerLogitProcessor, "edit", count)

    run(
        LoopBreakerLogitProcessor,
        {"max_pattern_size": 8, "min_pattern_size": 4, "min_count": 4},
        [0],
        lambda token_ids: [float(i == len(token_ids)) for i in range(40)],  # no token twice
        steps=30,
        vocab_size=40,
    )

    assert asked == [0, 12, 24]


def test_a_loop_ends_its_request_and_the_finish_reason_says_so():
    pytest.importorskip("sglang")
    request = FakeRequest([9], [1, 2, 3, 2, 3], served=True)
    params = {"max_pattern_size": 8, "min_count": 3, "action": "end"}
    custom_params = request.custom_params(params)
    processor = LoopBreakerLogitProcessor()

    processor(torch.zeros(1, 4), [custom_params])
    assert request.to_finish is None
    request.append(2)
    processor(torch.zeros(1, 4), [custom_params])
    assert request.to_finish is None
    request.append(3)
    row = processor(torch.zeros(1, 4), [custom_params])

    assert request.to_finish.to_json() == {"type": "stop", "matched": "loop: 2 tokens, 3 times"}
    assert not row.any()


def test_a_request_that_ends_already_keeps_its_reason():
    request = FakeRequest([9], [1, 1], served=True)
    request.to_finish = "an error"
    params = {"max_pattern_size": 8, "min_count": 2, "action": "end"}

    LoopBreakerLogitProcessor()(torch.zeros(1, 4), [request.custom_params(params)])

    assert request.to_finish == "an error"


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({}, (128, 4, 4)),
        ({"action": "end"}, (128, 4, 4)),
        ({"preset": "code"}, (1024, 16, 4)),
        ({"preset": "structured-output", "min_count": 9}, (20, 1, 9)),
        ({"min_pattern_size": 2}, (128, 2, 4)),
        # As it was before there were presets.
        ({"max_pattern_size": 3, "min_count": 2}, (3, 1, 2)),
    ],
)
def test_what_is_left_out_comes_from_the_preset(given, setting):
    params = LoopBreakerLogitProcessor.parse_params(given)

    assert (params.max_pattern_size, params.min_pattern_size, params.min_count) == setting


def new_ngrams(output, ngram_size, window_size):
    """Say by definition which n-grams of the window are new."""
    window = output[-window_size:]
    ngrams = [tuple(window[i : i + ngram_size]) for i in range(window_size - ngram_size + 1)]
    return {ngram for i, ngram in enumerate(ngrams) if ngram not in ngrams[:i]}


def counted(output, ngram_size, window_size):
    """Return the window after tokens that came one by one."""
    novelty = Novelty(ngram_size, window_size)
    for token_id in output:
        novelty.push(token_id)
    return novelty


@given(
    output=st.lists(tokens, max_size=30),
    sizes=st.tuples(st.integers(1, 4), st.integers(2, 9)).filter(
        lambda sizes: sizes[0] <= sizes[1]
    ),
    share=st.sampled_from([0.2, 0.5, 0.75, 1.0]),
)
@example(output=[0, 1, 2, 0, 1, 2, 0], sizes=(2, 7), share=0.5)
@example(output=[0, 0, 1, 1], sizes=(4, 4), share=1.0)
def test_tokens_that_repeat_an_ngram_are_banned_where_few_are_new(output, sizes, share):
    ngram_size, window_size = sizes
    params = {"min_new_share": share, "ngram_size": ngram_size, "window_size": window_size}
    off = {"max_pattern_size": 1, "min_count": 1000}
    request = FakeRequest([0, 0, 0, 0])  # a prompt does not count
    custom_params = request.custom_params(params | off)
    processor = LoopBreakerLogitProcessor()

    for position in range(len(output) + 1):
        row = processor(torch.zeros(1, 4), [custom_params])[0].tolist()
        so_far, expected = output[:position], set()
        if len(so_far) >= window_size:
            new = new_ngrams(so_far, *sizes)
            if len(new) < share * (window_size - ngram_size + 1):
                before = tuple(so_far[len(so_far) - ngram_size + 1 :])
                expected = {token for token in range(4) if (*before, token) in new}
        assert {i for i, logit in enumerate(row) if logit} == expected
        assert few_are_new(so_far, *sizes, share) == counted(so_far, *sizes).few_are_new(share)
        if position < len(output):
            request.append(output[position])


def numbered(count):
    """Return a list in which only the numbers change: 20 tokens an item, two of them digits."""
    return [token for i in range(count) for token in (*range(100, 118), i // 10, i % 10)]


@pytest.mark.parametrize(
    ("action", "kind"), [("end", "stop"), ("truncate", "length"), ("ban", None)]
)
def test_a_list_in_which_only_numbers_change_is_a_loop_of_its_own_kind(action, kind):
    pytest.importorskip("sglang")
    output = numbered(7)[:-5]
    exact, few = {"action": action}, {"action": action, "min_new_share": 0.4}
    edited = {}
    for name, params in (("exact", exact), ("few", few)):
        request = FakeRequest([9], output, served=True)
        row = LoopBreakerLogitProcessor()(torch.zeros(1, 200), [request.custom_params(params)])[0]
        edited[name] = row.isinf().nonzero().flatten().tolist(), request.to_finish

    assert edited["exact"] == ([], None)
    banned, finish = edited["few"]
    assert banned == ([115] if kind is None else [])
    if kind is not None:
        assert finish.to_json()["type"] == kind
        told = finish.to_json()["matched" if kind == "stop" else "reason"]
        new = len(new_ngrams(output, 4, 128))
        assert told == f"loop: {new} new 4-grams in 128 tokens"


def test_a_model_that_only_changes_numbers_is_made_to_go_on_otherwise():
    items = numbered(40)

    def model(token_ids):
        logits = [0.0] * 200
        logits[items[len(token_ids) % len(items)]] = 2.0
        logits[150 + len(token_ids) % 50] = 1.0
        return logits

    def few(**params):
        played = run(LoopBreakerLogitProcessor, params, [], model, steps=400, vocab_size=200)
        return sum(few_are_new(played.token_ids[:end], 4, 128, 0.35) for end in range(400))

    assert few() > 200
    assert few(min_new_share=0.4) < 20


def test_a_fork_leaves_the_window_where_it_was():
    request = FakeRequest([])
    processor = LoopBreakerLogitProcessor()
    params = {"min_new_share": 0.5, "ngram_size": 1, "window_size": 2}
    request.params = processor.parse_params(params)
    request.state = processor.start(request)
    processor.advance(request, [1, 2, 1])
    fork = FakeRequest([])
    fork.state = processor.fork(request)
    processor.advance(fork, [1])

    assert (request.state.novelty.new, fork.state.novelty.new) == (2, 1)
