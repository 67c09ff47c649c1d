"""Guaranteed answers, against playing random models and counting by hand."""

import math
import random
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.history.attached import attach_row
from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.links import Serving, prepare
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import Batch, FakeRequest, decided_as_on_a_gpu, run
from support.models.vocabularies import one_token_a_byte

VOCAB = 9
START, END, NEW_LINE, EOS, STOP = 1, 2, 3, 4, 5
WORDS = 6, 7, 8
IDS = {"thinking_start_token_id": START, "thinking_end_token_id": END}


def played(params, prompt, model, *, steps, processor=ThinkingBudgetLogitProcessor, ids=IDS):
    """Return the tokens of an answer up to its end."""
    output = run(
        processor,
        {**ids, **params},
        prompt,
        model,
        steps=steps,
        vocab_size=VOCAB,
        eos_token_ids=[EOS, STOP],
    ).token_ids
    ends = [place for place, token_id in enumerate(output) if token_id in {EOS, STOP}]
    return output[: ends[0] + 1] if ends else output


def random_model(seed):
    """Return a model whose next token is a random function of the last two, as an automaton's."""
    some = random.Random(seed)
    likes = {
        pair: [some.random() * (1 + 2 * (token_id in {START, END, EOS})) for token_id in range(9)]
        for pair in product(range(-1, VOCAB), repeat=2)
    }
    return lambda token_ids: likes[tuple([-1, -1, *token_ids][-2:])]


def counted(prompt, output, end=(END,)):
    """Return whether the last block is open, and the tokens after it: without ends, and all."""
    inside, since, whole = False, len(prompt), [*prompt, *output]
    for place, token_id in enumerate(whole):
        if not inside and token_id == START:
            inside = True
        elif inside and tuple(whole[place + 1 - len(end) : place + 1]) == end:
            inside, since = False, max(place + 1, len(prompt))
    said = len([one for one in whole[since:] if one not in {EOS, STOP, *end}])
    return inside, said, len(whole) - since


@given(
    seed=st.integers(0, 1 << 30),
    prompt=st.lists(st.sampled_from([START, END, 6, 7]), max_size=3),
    least=st.integers(1, 6),
    steps=st.integers(1, 60),
    own=st.fixed_dictionaries(
        {},
        optional={
            "thinking_budget": st.integers(0, 20),
            "answer_room": st.integers(0, 12),
            "min_thinking_tokens": st.integers(0, 8),
            "new_line_token_id": st.just(NEW_LINE),
            "closing_token_ids": st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
            "eos_token_ids": st.just([STOP]),
        },
    ),
    on_a_gpu=st.booleans(),
)
def test_an_answer_ends_outside_of_a_block_with_as_many_tokens_as_are_guaranteed(  # noqa: PLR0917
    seed, prompt, least, steps, own, on_a_gpu
):
    budget = own.get("thinking_budget", 60)
    own["min_thinking_tokens"] = min(own.get("min_thinking_tokens", 0), budget)
    params, model = {**own, "min_answer_tokens": least}, random_model(seed)
    if on_a_gpu:
        with decided_as_on_a_gpu():
            output = played(params, prompt, model, steps=steps)
    else:
        output = played(params, prompt, model, steps=steps)

    closing = len(own.get("closing_token_ids", own.keys() & {"new_line_token_id"})) + 1
    room = max(least, own.get("answer_room", 0))
    is_open, said, left = counted(prompt, output)
    if output[-1] in {EOS, STOP}:
        assert not is_open
        assert said >= least
    elif steps >= room + closing:
        assert not is_open
        assert left >= min(room, steps)


@given(seed=st.integers(0, 1 << 30), least=st.integers(1, 6), steps=st.integers(1, 40))
def test_a_model_that_skips_thinking_answers_once(seed, least, steps):
    model = random_model(seed)

    def skips(token_ids):
        return [like - 9 * (token_id == START) for token_id, like in enumerate(model(token_ids))]

    output = played({"min_answer_tokens": least, "thinking_budget": 3}, [6], skips, steps=steps)

    # By hand: the model's own likeliest tokens, without an end among the first.
    expected = []
    while len(expected) < steps and not {EOS, STOP} & {*expected}:
        likes = skips([6, *expected])
        if len([one for one in expected if one != END]) < least:
            likes[EOS] = likes[STOP] = -1
        expected.append(likes.index(max(likes)))
    assert output == expected


@pytest.mark.parametrize("kind", ["json_schema", "regex", "ebnf", "structural_tag", None])
def test_a_grammar_decides_where_the_answer_ends(kind):
    """Behind the first token, that is: without one there would be no answer."""
    ends = ServedModel(vocab_size=VOCAB, eos_token_ids=(EOS,))
    params = {**IDS, "min_answer_tokens": 3, "thinking_budget": 4}
    ((processor, parsed, *_),) = prepare(ThinkingBudgetLogitProcessor(), params, ends)
    request = FakeRequest([6])
    request.sampling_params = SimpleNamespace(**({kind: "{}"} if kind else {}))
    row = attach_row(custom_params := request.custom_params({}), [Serving(processor, parsed)])

    banned = []
    for _ in range(4):
        logits = torch.zeros(1, VOCAB)
        Batch().step(logits, [row], [custom_params])
        banned.append(logits[0, EOS] == -math.inf)
        request.append(7)
    assert banned == [True, kind is None, kind is None, False]


def test_white_space_is_no_answer():
    tokenizer = one_token_a_byte()
    start, end, word, space = (tokenizer.token_to_id(char) for char in "<>aĠ")
    params = {"thinking_start": "<", "thinking_end": ">", "min_answer_tokens": 1}

    output = run(
        ThinkingBudgetLogitProcessor,
        params,
        [start],
        [word, EOS, space, EOS, word, EOS],
        steps=6,
        vocab_size=400,
        tokenizer=tokenizer,
        eos_token_ids=[EOS],
    ).token_ids

    assert output == [word, end, space, 0, word, EOS]


def test_an_end_in_a_block_closes_it_and_an_end_after_it_waits():
    output = played({"min_answer_tokens": 2}, [START], [6, EOS, EOS, 7, EOS, 8, EOS], steps=7)

    assert output == [6, END, 0, 7, EOS]


def test_an_answer_that_is_to_end_in_its_block_cannot_be_guaranteed():
    for name in ("min_answer_tokens", "answer_room"):
        with pytest.raises(InvalidParameter, match=rf"^{name} of .*expected at_limit close"):
            ThinkingBudgetLogitProcessor.parse_params({"at_limit": "stop", name: 1})


def test_a_guaranteed_answer_needs_to_know_what_ends_it():
    with pytest.raises(InvalidParameter, match=r"^eos_token_ids of .*required"):
        prepare(
            ThinkingBudgetLogitProcessor(), {**IDS, "min_answer_tokens": 1}, ServedModel(None, 9)
        )


def test_a_request_cannot_name_the_end_tokens_of_the_model_away():
    served = ServedModel(None, VOCAB, (EOS,))
    params = {**IDS, "min_answer_tokens": 1, "eos_token_ids": [STOP]}

    ((_, fitted, *_),) = prepare(ThinkingBudgetLogitProcessor(), params, served)

    assert fitted.eos_token_ids == (STOP, EOS)
