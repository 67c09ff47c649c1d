"""Thinking budgets whose delimiters only the served tokenizer knows."""

import random

import pytest
from transformers import AutoTokenizer

from sglang_lp.builtins import Qwen3ThinkingBudgetLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.client import attach, thinking_blocks
from support.models.tiny_model import EOS, FREQUENT
from support.servers.asking import body
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]

START, END = FREQUENT[1:3]
#: What the tiny model's tokenizer calls them.
NAMED = {"thinking_start": f"Ġw{START}", "thinking_end": f"Ġw{END}"}


def ask(server, processor, **params):
    return server.post("/generate", body([50, 60, START], processor, params, max_new_tokens=12))


def test_the_served_tokenizer_knows_the_delimiters(server, tiny):
    (newline,) = AutoTokenizer.from_pretrained(tiny).encode("\n", add_special_tokens=False)

    reply = ask(server, ThinkingBudgetLogitProcessor, thinking_budget=0, **NAMED)

    assert reply.status == 200, reply.body
    assert reply.output_ids[:2] == [newline, END]


def test_the_client_resolves_and_counts_the_same(server, tiny):
    think = attach(
        ThinkingBudgetLogitProcessor,
        thinking_budget=4,
        min_thinking_tokens=4,
        closing_token_ids=[300, 301, 302],
        **NAMED,
    ).resolve(tiny)

    reply = ask(server, think.processor, **think.custom_params)

    assert reply.status == 200, reply.body
    assert reply.output_ids[4:8] == [300, 301, 302, END]
    block = thinking_blocks(think, [START], reply.output_ids)[0]
    assert (block.tokens, block.ended, block.forced, block.message) == (7, True, 4, True)


def test_a_model_without_delimiters_is_an_error_and_not_silence(server):
    reply = ask(server, ThinkingBudgetLogitProcessor, thinking_budget=4)

    assert reply.status == 400
    assert "name them with thinking_start and thinking_end" in str(reply.body)


def test_another_models_class_is_an_error_and_not_silence(server):
    reply = ask(server, Qwen3ThinkingBudgetLogitProcessor, thinking_budget=4)

    assert reply.status == 400
    assert "another model's" in str(reply.body)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_guaranteed_although_the_model_would_end_in_its_block(server, stream):
    send = server.stream if stream else server.post
    likes_to_end = {"max_new_tokens": 12, "logit_bias": {str(EOS): 100}}
    params = {"thinking_start_token_id": START, "thinking_end_token_id": END}
    before = body([50, 60, START], ThinkingBudgetLogitProcessor, params, **likes_to_end)
    params = {**params, "min_answer_tokens": 3}
    after = body([50, 60, START], ThinkingBudgetLogitProcessor, params, **likes_to_end)

    assert send("/generate", {**before, "stream": stream}).output_ids == [EOS]
    answer = send("/generate", {**after, "stream": stream}).output_ids
    assert (answer[0], answer[-1], len(answer)) == (END, EOS, 5)
    assert not {EOS, START} & {*answer[1:4]}

    # The answer goes on after a cut as if it had not been cut.
    after["input_ids"] += answer[:2]
    after["sampling_params"]["custom_params"] = {**params, "resumed_tokens": 2}
    assert send("/generate", {**after, "stream": stream}).output_ids == answer[2:]


def test_each_copy_of_a_request_leaves_room_for_its_answer(server):
    params = {"thinking_start_token_id": START, "thinking_end_token_id": END, "answer_room": 5}
    never_ends = {str(token_id): -100 for token_id in (EOS, START, END)}
    sampling = {"max_new_tokens": 12, "n": 2, "logit_bias": never_ends}

    request = body([50, 60, START], ThinkingBudgetLogitProcessor, params, **sampling)
    for answer in server.post("/generate", request).body:
        assert answer["output_ids"].index(END) == 12 - 5 - 1
        assert len(answer["output_ids"]) == 12
        thinking = answer["meta_info"]["sglang_lp"]["thinking"]
        assert thinking == [{"tokens": 6, "ended": "budget"}]


def is_answered(output):
    """Tell whether an answer that begins in a block has a token after its last block."""
    inside, said = True, 0
    for token_id in output:
        if token_id == (END if inside else START):
            inside, said = not inside, 0
        elif token_id != EOS:
            said += 1
    return not inside and said > 0


def test_every_sampled_answer_is_one_where_the_model_would_end_in_its_block(server):
    some = random.Random(1)
    prompts = [[some.randrange(50, 900), some.randrange(50, 900), START] for _ in range(200)]
    answered = []
    for own in ({}, {"min_answer_tokens": 1}):
        params = {"thinking_start_token_id": START, "thinking_end_token_id": END, **own}
        params["thinking_budget"] = 32
        request = body(prompts[0], ThinkingBudgetLogitProcessor, params, max_new_tokens=64)
        request["input_ids"] = prompts
        likes = {str(EOS): 3.0, str(END): 3.0}
        request["sampling_params"] |= {"temperature": 1.0, "logit_bias": likes}
        reply = server.post("/generate", request)
        assert reply.status == 200, reply.body
        answered.append(sum(is_answered(one["output_ids"]) for one in reply.body))

    assert answered[0] < answered[1] == len(prompts)
