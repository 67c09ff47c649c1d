"""Speculative decoding: what one token a step does not have. The rest is in ``test_history``."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
import torch

from sglang_lp.builtins import (
    AllowedTokensLogitProcessor,
    ChainLogitProcessor,
    ForcedSequenceLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from sglang_lp.client import attach, probabilities
from support.models import tiny_model
from support.models.tiny_model import EOS, FIRST_WORD, FREQUENT, word
from support.oracles.greedy import TOLERANCE, rule
from support.plugins import foreseeing
from support.processors.recording import BansAll, Finishes, OnlyAlong, Raises
from support.servers.asking import body
from support.servers.configurations import DRAFTING, on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers(*DRAFTING)]

TOKENS = 30
#: How often a test of frequencies may fail a server that is right.
FALSE_ALARM = 1e-6
PROMPTS = [[*range(first, first + 9)] for first in range(300, 1000, 100)]
#: A budget that no answer uses up.
IDLE = (
    ThinkingBudgetLogitProcessor,
    {
        "thinking_budget": 1 << 20,
        "thinking_start_token_id": FREQUENT[0],
        "thinking_end_token_id": FREQUENT[1],
    },
)


def ask(server, prompt, *processor, **sampling):
    return server.post("/generate", body(prompt, *processor, max_new_tokens=TOKENS, **sampling))


@pytest.fixture(scope="module")
def answers(server):
    """The model's own answers, which an n-gram draft has seen from now on."""
    return [ask(server, prompt).output_ids for prompt in PROMPTS]


def accepted(reply):
    """Return how many drafted tokens an answer was spared."""
    return reply.body["meta_info"]["spec_num_correct_drafts"]


def test_drafts_are_accepted_and_others_are_not(server, answers):
    replies = [ask(server, prompt) for prompt in PROMPTS]
    meta = [reply.body["meta_info"] for reply in replies]
    right = sum(one["spec_num_correct_drafts"] for one in meta)
    assert 10 < right < sum(one["spec_num_proposed_drafts"] for one in meta)


def test_a_processor_that_sleeps_leaves_every_draft_as_it_is(server, answers):
    learns = server.arguments["speculative_algorithm"] == "NGRAM"
    guesses = foreseeing.VARIABLE in server.variables
    since = server.record.stat().st_size
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        alone, idle = (ask(server, prompt, *processor) for processor in ((), IDLE))
        assert idle.output_ids == alone.output_ids == answer
        if guesses:
            continue  # until it sleeps, its drafts are written over at random
        # What the first answer taught may have made more of the second one's drafts right.
        assert accepted(idle) == accepted(alone) or (learns and accepted(idle) > accepted(alone))
    # SGLang's fast paths, such as DSPARK's graphs, are for steps without processors.
    shown = [line["processors"] for line in server.records("verify", since=since)]
    assert sum(shown) <= 2 * len(PROMPTS) < len(shown)


def test_a_rule_of_one_phase_follows_the_blocks_along_a_draft(server, oracle):
    (start,), (end,) = (tiny_model.tokenizer().encode(mark).ids for mark in "{}")
    params = {
        "chain": ["ScheduledBiasLogitProcessor"] * 2 + ["ScriptLogitProcessor"],
        "0.token_ids": [start],
        "0.bias": 1000.0,
        "0.start": 3,
        "0.end": 4,
        "1.token_ids": [end],
        "1.bias": 1000.0,
        "1.start": 12,
        "1.end": 13,
        "2.scripts": ["Latin"],
        "2.mode": "ban",
        "2.where": "thinking",
        "2.thinking_start": "{",
        "2.thinking_end": "}",
    }
    said = {True: set(), False: set()}
    for prompt in PROMPTS * 2:  # an n-gram draft knows it after the first time
        output_ids = ask(server, prompt, ChainLogitProcessor, params).output_ids
        oracle.check(prompt, output_ids, rule(ChainLogitProcessor, params))
        is_open = False
        for token_id in output_ids:
            said[is_open].add(token_id)
            is_open = token_id == start or (is_open and token_id != end)
    assert said[True] - {start, end}
    assert max(said[True]) < FIRST_WORD <= max(said[False])


#: Rules with a form, of which a batch has enough rows.
AT_WORK = [
    attach("BadWordsLogitProcessor", token_ids=[870, 386, 870, 10, 386], lengths=[2, 3]),
    attach("DeepseekOCRNoRepeatNGramLogitProcessor", ngram_size=2, window_size=30),
    attach("DRYLogitProcessor", dry_multiplier=6, dry_allowed_length=1),
    attach("LoopBreakerLogitProcessor", max_pattern_size=4, min_count=2),
    attach("ScheduledBiasLogitProcessor", token_ids=[300], bias=0, final_bias=30, end=25),
    attach("ForcedSequenceLogitProcessor", token_ids=[*range(300, 320)]),
    attach(
        [
            attach("DisallowedTokensLogitsProcessor", token_ids=[386]),
            attach("DRYLogitProcessor", dry_multiplier=6, dry_allowed_length=1),
        ]
    ),
]


def test_rows_at_work_in_one_batch_do_what_each_does_to_the_true_history(server, answers, oracle):
    bodies = [one.generate_body(body(PROMPTS[0], max_new_tokens=TOKENS)) for one in AT_WORK]
    replies = server.at_once([*bodies, *bodies], stagger=0.01)

    for one, reply in zip(AT_WORK * 2, replies, strict=True):
        done = rule(one.processor, one.custom_params)
        oracle.check(PROMPTS[0], reply.output_ids, done)


@pytest.mark.parametrize("at", [0, 1, 2, 3, 7, 12])
def test_a_request_ends_with_the_token_at_which_its_processor_says_so(server, answers, at):
    bodies = [body(prompt, Finishes, {"at": at}, max_new_tokens=TOKENS) for prompt in PROMPTS]
    for reply, answer in zip(server.at_once(bodies), answers, strict=True):
        assert reply.output_ids == answer[: at + 1]
        assert reply.finish_reason == {"type": "stop", "matched": "enough"}


def test_a_fault_at_a_drafted_token_that_does_not_come_counts_for_nothing(server, answers):
    # The model's own tokens first, which are drafted, and then tokens that no draft has.
    turns = [[*answer[:12], *reversed(answer[12:])] for answer in answers]
    bodies = [
        body(prompt, OnlyAlong, {"answer": turn}, max_new_tokens=TOKENS)
        for prompt, turn in zip(PROMPTS, turns, strict=True)
    ]
    for reply, turn in zip(server.at_once(bodies), turns, strict=True):
        assert reply.output_ids == turn
    assert server.records("astray")


@pytest.mark.parametrize("processor", [Raises, BansAll])
@pytest.mark.parametrize("at", [0, 1, 6, 11])
def test_a_fault_at_a_token_that_comes_ends_its_own_request(server, answers, processor, at):
    faulty = [body(prompt, processor, {"at": at}, max_new_tokens=TOKENS) for prompt in PROMPTS[1:]]
    first, *others = server.at_once([body(PROMPTS[0], max_new_tokens=TOKENS), *faulty])
    assert first.output_ids == answers[0]
    for reply in others:
        assert reply.status == 500
        assert f"{processor.__name__} failed at token {at}: " in reply.body["message"]


@pytest.mark.parametrize("limit", [1, 5, 8, 13])
def test_a_fault_behind_the_end_counts_for_nothing(server, answers, limit):
    bodies = [body(prompt, Raises, {"at": limit}, max_new_tokens=limit) for prompt in PROMPTS]
    for reply, answer in zip(server.at_once(bodies), answers, strict=True):
        assert reply.output_ids == answer[:limit]
        assert reply.finish_reason == {"type": "length", "length": limit}


def test_a_fault_behind_a_stop_token_counts_for_nothing(server, answers):
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        stop = answer[9]
        at = answer.index(stop)
        reply = ask(server, prompt, Raises, {"at": at + 1}, stop_token_ids=[stop])
        assert reply.output_ids == answer[: at + 1]
        assert reply.finish_reason == {"type": "stop", "matched": stop}


def test_a_stop_string_within_what_a_step_accepts_ends_the_request_there(server, answers):
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        stop = next(token for token in answer[8:] if token >= FIRST_WORD)
        at = answer.index(stop)
        reply = ask(server, prompt, Raises, {"at": at + 1}, stop=word(stop))
        assert reply.output_ids == answer[: at + 1]
        assert reply.finish_reason == {"type": "stop", "matched": word(stop)}


def test_an_end_token_inside_a_forced_run_ends_the_request_unless_it_is_ignored(server):
    forced = [*FREQUENT[:3], EOS, *FREQUENT[3:], 300, 301]
    params = {"token_ids": forced}
    for _ in range(3):  # an n-gram draft knows it after the first time
        reply = ask(server, PROMPTS[1], ForcedSequenceLogitProcessor, params)
        assert reply.output_ids == forced[:4]
        assert reply.finish_reason == {"type": "stop", "matched": EOS}
    reply = ask(server, PROMPTS[1], ForcedSequenceLogitProcessor, params, ignore_eos=True)
    assert reply.output_ids[: len(forced)] == forced


@pytest.mark.parametrize("length", [1, 2, 5, 9])
def test_a_forced_end_token_ends_the_request_again_and_again(server, length):
    forced = [*FREQUENT, *range(300, 304)][:length]
    params = {"token_ids": forced, "eos_token_id": EOS}
    for _ in range(3):  # an n-gram draft knows it after the first time
        reply = ask(server, PROMPTS[0], ForcedSequenceLogitProcessor, params)
        assert reply.output_ids == [*forced, EOS]
        assert reply.finish_reason == {"type": "stop", "matched": EOS}


def test_sampled_tokens_are_what_a_processor_leaves(server):
    rng = random.Random(5)
    allowed = [*FREQUENT, *rng.sample(range(2, 1024), 5)]
    request = body(
        PROMPTS[0],
        AllowedTokensLogitProcessor,
        {"token_ids": allowed},
        max_new_tokens=TOKENS,
        temperature=0.8,
        n=8,
    )
    replies = server.post("/generate", request).body
    assert len({tuple(reply["output_ids"]) for reply in replies}) > 1
    for reply in replies:
        assert {*reply["output_ids"]} <= {*allowed}
        assert any(a != b for a, b in pairwise(reply["output_ids"]))


def test_sampled_answers_are_as_frequent_as_the_edited_model_says(server, oracle):
    """A chi-square test; a server that is right fails it once in a million runs."""
    allowed, length, temperature, asked, at_once = FREQUENT[:3], 3, 8.0, 64, 32
    params = {
        "chain": ["AllowedTokensLogitProcessor", "ScheduledBiasLogitProcessor"],
        "0.token_ids": [*allowed],
        "1.token_ids": [allowed[0]],
        "1.bias": 4.0,
        "1.final_bias": -4.0,
        "1.start": 1,
        "1.end": 2,
    }

    def expected(edited):
        """Return the probability of each answer."""
        answers = {(): 1.0}
        for _ in range(length):
            answers = {
                (*history, token): chance * float(following[token])
                for history, chance in answers.items()
                for row in [oracle.logits(PROMPTS[0], [*history, 0])[-1]]
                for following in [edited(PROMPTS[0], [*history], row).div(temperature).softmax(-1)]
                for token in allowed
            }
        return answers

    request = body(
        PROMPTS[0],
        ChainLogitProcessor,
        params,
        max_new_tokens=length,
        temperature=temperature,
        n=at_once,
    )
    answers = [server.post("/generate", request).body for _ in range(asked)]
    came = Counter(tuple(reply["output_ids"]) for batch in answers for reply in batch)
    right = expected(rule(ChainLogitProcessor, params))
    assert came.total() == asked * at_once
    assert {*came} <= {*right}
    assert min(right.values()) * came.total() >= 5, "too few for the test"
    assert chance_of(came, right) > FALSE_ALARM
    # Without the bias at drafted tokens it would be this.
    unbiased = rule(AllowedTokensLogitProcessor, {"token_ids": [*allowed]})
    assert chance_of(came, expected(unbiased)) < FALSE_ALARM


def chance_of(came, expected):
    """Return how likely a right server's answers are as far from the expected ones, or farther."""
    total = came.total()
    distance = sum(
        (came[answer] - chance * total) ** 2 / (chance * total)
        for answer, chance in expected.items()
    )
    freedom = torch.tensor((len(expected) - 1) / 2)
    return torch.special.gammaincc(freedom, torch.tensor(distance / 2))


def test_choices_are_scored_by_the_model_and_not_by_its_drafts(server, oracle):
    vote = attach("ChoiceLogitProcessor", choices=["yes", "no"], pick="likeliest")

    reply = server.post("/generate", vote.generate_body(body(PROMPTS[0])))

    found = probabilities(reply.body)
    assert reply.body["text"] == found.likeliest
    for one in found.scored.values():
        rows = oracle.logits(PROMPTS[0], one.token_ids).log_softmax(-1)
        told = [float(row[token]) for row, token in zip(rows, one.token_ids, strict=True)]
        assert one.logprob == pytest.approx(sum(told), abs=TOLERANCE)
