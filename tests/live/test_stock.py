"""On SGLang without the plugin: exact where it can be, never silently wrong, never fatal."""

from __future__ import annotations

import random
import re

import pytest

from sglang_lp import builtins
from support.models.tiny_model import EOS, FREQUENT
from support.oracles.greedy import TOLERANCE, free, rule
from support.processors import recording
from support.servers.asking import body, recorder, tag
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("stock")]

START, END, NEWLINE = FREQUENT[:3]


def test_no_policy_is_enforced_without_the_plugin(server):
    assert server.post("/generate", body([5], recording.Unlisted, {})).status == 200


def test_forced_sequences_are_exact(server, oracle):
    rng = random.Random(1)
    cases = [
        {"token_ids": [rng.randrange(2, 1024) for _ in range(rng.randint(1, 20))]}
        | ({"eos_token_ids": [EOS]} if i % 2 else {})
        for i in range(16)
    ]
    requests = [
        body(range(30, 40 + i), builtins.ForcedSequenceLogitProcessor, params)
        for i, params in enumerate(cases)
    ] + [body([50 + i]) for i in range(4)]
    replies = server.at_once(requests, 0.01)
    for request, reply, params in zip(requests, replies, [*cases] + [None] * 4, strict=True):
        ruling = rule(builtins.ForcedSequenceLogitProcessor, params) if params else free
        oracle.check(request["input_ids"], reply.output_ids, ruling)


def test_disallowed_tokens_never_come(server, oracle):
    params = {"token_ids": [*FREQUENT]}
    request = body(range(30, 40), builtins.DisallowedTokensLogitsProcessor, params)
    for reply in server.at_once([request] * 4, 0.02):
        ruling = rule(builtins.DisallowedTokensLogitsProcessor, params)
        oracle.check(request["input_ids"], reply.output_ids, ruling)


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 12])
def test_a_thinking_budget_is_kept_and_its_end_forced_once(server, oracle, budget):
    params = {
        "thinking_budget": budget,
        "thinking_start_token_id": START,
        "thinking_end_token_id": END,
        "new_line_token_id": NEWLINE,
    }
    rng = random.Random(budget)
    prompts = [
        [rng.randrange(500, 1024) for _ in range(20)]
        + [[], [START], [], [START, 500, 501, 502]][i % 4]
        for i in range(16)
    ]
    requests = [
        body(prompt, builtins.ThinkingBudgetLogitProcessor, params, max_new_tokens=100)
        for prompt in prompts
    ]
    forced_ends = 0
    for prompt, reply in zip(prompts, server.at_once(requests, 0.01), strict=True):
        assert reply.status == 200, reply.body
        # Counted from the latest start of the prompt, or from the first that is not closed.
        opened = len(prompt) - prompt[::-1].index(START) if START in prompt else None
        tokens = [*prompt]
        for token, row in zip(
            reply.output_ids, oracle.logits(prompt, reply.output_ids), strict=True
        ):
            thought = tokens[opened:] if opened is not None else []
            if row[token] < row.max() - TOLERANCE:  # not the model's own choice
                own = int(row.argmax())
                closing = opened is not None and len(thought) >= budget
                banned = END if budget else START
                assert (token in (NEWLINE, END) and closing) or own == banned
                forced_ends += token == END
            if opened is not None:
                spent = len(thought) - (thought[-1:] == [NEWLINE])
                allowed = max(budget, len(prompt) - opened)  # a prompt may have thought for longer
                assert spent <= allowed, f"{spent} tokens of thought: {thought}"
            tokens.append(token)
            if token == START and opened is None:
                opened = len(tokens)
            opened = None if token == END else opened
    assert forced_ends >= 4


def test_a_processor_that_cannot_see_the_newest_token_says_so_once_and_does_not_guess(server):
    requests = [recorder([60 + i], steering=True) for i in range(3)]
    plain = [reply.output_ids for reply in server.at_once([body([60 + i]) for i in range(3)])]
    for request, reply in zip(requests, server.at_once(requests), strict=True):
        lines = server.records("edit", tag=tag(request))
        assert [line["position"] for line in lines[:1]] == [0]
        for line in lines:
            assert line["exact"]
            assert line["fed"] == reply.output_ids[: line["position"]]
    assert plain
    said = re.findall("Recorder cannot see the newest token.*", server.log_text())
    assert len(said) == 1
    for remedy in ("plugin", "SGLANG_ENABLE_DELAY_SAMPLE=1", "--disable-overlap-schedule"):
        assert remedy in said[0]


@pytest.mark.parametrize(
    ("processor", "params", "message"),
    [
        (
            builtins.ForcedSequenceLogitProcessor,
            {"token_ids": "abc"},
            "token_ids of ForcedSequenceLogitProcessor: expected a list",
        ),
        (
            builtins.DeepseekOCRNoRepeatNGramLogitProcessor,
            {"ngram_size": 2},
            "window_size of DeepseekOCRNoRepeatNGramLogitProcessor: required",
        ),
        (
            builtins.ThinkingBudgetLogitProcessor,
            {"thinking_budgets": 5},
            "custom_params of ThinkingBudgetLogitProcessor: unknown parameter 'thinking_budgets'",
        ),
    ],
)
def test_a_bad_parameter_ends_its_own_request(server, processor, params, message):
    neighbour = body([70])
    alone = server.post("/generate", neighbour).output_ids
    refused, beside = server.at_once([body([71], processor, params), neighbour])
    assert refused.status == 400
    assert message in str(refused.body)
    assert beside.output_ids == alone


@pytest.mark.parametrize("processor", [recording.Raises, recording.OutOfVocabulary])
def test_a_processor_that_fails_ends_its_own_request(server, processor):
    reply = server.post("/generate", body([5], processor, {"at": 0}))
    assert reply.status == 500
    assert reply.body["message"].startswith(f"{processor.__name__} failed at token 0: ")
    assert server.is_healthy()
