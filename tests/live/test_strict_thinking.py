"""A thinking budget together with SGLang's own, which allows only the end once it is spent."""

from __future__ import annotations

import re

import pytest
from transformers import AutoConfig

from demo.corpus import END_THINK, QUESTIONS, prompt
from sglang_lp.builtins import ChainLogitProcessor, ThinkingBudgetLogitProcessor
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("strict thinking")]

PROCESSOR, CHAIN = ThinkingBudgetLogitProcessor.__name__, ChainLogitProcessor.__name__
QUESTION, ANSWER = next(iter(QUESTIONS.items()))
#: As the server has it, and as it counts: the token that opens the block is one of them.
STRICT = 32 - 1
CLOSING = "\n\nI have to give the answer now.\n"
DIGITS = "[12]{3}"


# In a chain SGLang does not find the budget, and its server's own is in force.
@pytest.mark.parametrize("chained", [False, True], ids=["alone", "in a chain"])
@pytest.mark.parametrize("regex", [None, DIGITS], ids=["free", "grammar"])
@pytest.mark.parametrize(
    "params",
    [
        *({"thinking_budget": budget} for budget in (0, 1, 8, 29, 30, 31, 32, 33, 64)),
        *({"thinking_budget": budget, "closing": CLOSING} for budget in (8, 28, 31, 40)),
        {"thinking_budget": 40, "soft_thinking_budget": 20, "soft_top_n": 1000},
        {"thinking_budget": 64, "min_thinking_tokens": 40},
        {"thinking_budget": 64, "total_thinking_tokens": 20},
    ],
    ids=str,
)
def test_the_smaller_of_two_budgets_closes_the_block(server, params, regex, chained):
    processor = CHAIN if chained else PROCESSOR
    links = {"chain": [PROCESSOR], **{f"0.{name}": value for name, value in params.items()}}
    reply = server.post(
        "/v1/chat/completions",
        {
            "model": "demo",
            "messages": [{"role": "user", "content": QUESTION}],
            "temperature": 0,
            "max_tokens": 120,
            "regex": regex,
            "return_meta_info": True,
            "custom_logit_processor": processor,
            "custom_params": links if chained else params,
        },
    )

    assert reply.status == 200, reply.body
    (choice,) = reply.body["choices"]
    (block,) = choice["meta_info"]["sglang_lp"]["thinking"]
    own = min(params["thinking_budget"], params.get("total_thinking_tokens", 64))
    message = 13 if "closing" in params else 1  # the closing counts as thought
    strict = STRICT if chained else own + message
    assert block["tokens"] <= min(strict, own + message)
    assert block["tokens"] >= min(strict, own) or "soft_thinking_budget" in params
    if "closing" in params and not chained:
        assert CLOSING.strip() in choice["message"]["reasoning_content"]
    said = choice["message"]["content"]
    assert re.fullmatch(DIGITS, said) if regex else said.strip() == ANSWER


@pytest.mark.parametrize("budget", [0, 1, 8, 31, 100])
def test_a_budget_for_both_is_kept_by_both(server, budget):
    reply = server.post(
        "/generate",
        {
            "text": prompt(QUESTION),
            "require_reasoning": True,
            "max_thinking_tokens": budget,
            "custom_logit_processor": PROCESSOR,
            "sampling_params": {"temperature": 0, "max_new_tokens": 250},
        },
    )

    assert reply.status == 200, reply.body
    blocks = reply.body["meta_info"]["sglang_lp"]["thinking"]
    assert all(block["tokens"] <= budget + 1 for block in blocks)
    assert len(blocks) == reply.body["text"].count(END_THINK)


@pytest.mark.parametrize("bias", [-1e38, -1e39])
def test_a_bias_that_leaves_one_token_does_not_pass_for_strict_thinking(server, bias):
    vocab_size = AutoConfig.from_pretrained(server.arguments["model_path"]).vocab_size
    reply = server.post(
        "/generate",
        {
            "text": prompt(QUESTION) + "<think>",
            "require_reasoning": True,
            "custom_logit_processor": PROCESSOR,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": 60,
                "custom_params": {"thinking_budget": 8},
                "logit_bias": {str(token_id): bias for token_id in range(vocab_size - 1)},
            },
        },
    )

    meta_info = reply.body.get("meta_info")
    # Where the closing is masked, the request ends with an error.
    assert reply.status != 200 or meta_info["sglang_lp"]["thinking"][0]["tokens"] <= 9
