"""The processors that restrict, repeat less and combine, on a real server."""

from __future__ import annotations

import re
from itertools import pairwise, takewhile

import pytest

from sglang_lp import builtins
from sglang_lp.client import attach
from support.models.tiny_model import EOS, word
from support.oracles.greedy import rule
from support.servers.asking import body
from support.servers.configurations import APART, on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default", APART)]

PROMPT = [5, 6, 7, 296, 454]
#: Tokens of the model's own answer to it: the first of it, and two that come again.
C, A, B = 10, 870, 386
#: B is the end token here, since the tiny model never ends by itself.
WORDS = attach(
    "ForcedWordsLogitProcessor",
    token_ids=[300, 301, A, 302, 303],
    lengths=[2, 3],
    eos_token_ids=[B, EOS],
)

#: A request for each processor, with parameters that change that answer.
ASKED = [
    attach("AllowedTokensLogitProcessor", token_ids=[A, B, C]),
    attach("BadWordsLogitProcessor", token_ids=[A, B, C, C, B], lengths=[1, 2, 2]),
    attach("ChoiceLogitProcessor", token_ids=[A, B, A, C, C], lengths=[2, 3], eos_token_ids=[EOS]),
    WORDS,
    attach("MinLengthLogitProcessor", min_tokens=12, eos_token_ids=[A, EOS]),
    attach("ScheduledBiasLogitProcessor", token_ids=[300], bias=0, final_bias=30, start=5, end=25),
    attach("ScheduledBiasLogitProcessor", token_ids=[A], start=3),
    attach("TriggerPhraseLogitProcessor", trigger_token_ids=[A], phrase_token_ids=[300, 301]),
    attach("TriggerPhraseLogitProcessor", before_token_ids=[A, B], phrase_token_ids=[300, 301]),
    attach("DRYLogitProcessor", dry_multiplier=6, dry_allowed_length=1),
    attach("DeepseekOCRNoRepeatNGramLogitProcessor", ngram_size=1, window_size=20, scope="output"),
    attach(
        [
            attach("AllowedTokensLogitProcessor", token_ids=[A, B, C, 300, 301, 302]),
            attach("LoopBreakerLogitProcessor", max_pattern_size=4, min_count=2),
            attach("MinLengthLogitProcessor", min_tokens=8, eos_token_ids=[A]),
        ]
    ),
    attach(
        [
            attach(
                "ThinkingBudgetLogitProcessor",
                thinking_budget=30,
                soft_thinking_budget=14,
                min_thinking_tokens=10,
                wait_token_id=301,
                closing_token_ids=[302, 303],
                eos_token_ids=[A, B],
                thinking_start_token_id=PROMPT[-1],
                thinking_end_token_id=300,
            ),
            attach("DisallowedTokensLogitsProcessor", token_ids=[C]),
        ]
    ),
]


def asked(attachment, **sampling):
    return attachment.generate_body(body(PROMPT, **sampling))


def test_each_does_in_one_batch_what_it_does_to_the_true_history(server, oracle):
    bodies = [asked(attachment) for attachment in ASKED]
    # Twice, so that none is alone in its prefill.
    replies = server.at_once([body(PROMPT), *bodies, *bodies], stagger=0.01)

    oracle.check(PROMPT, replies[0].output_ids)
    for attachment, reply in zip(ASKED * 2, replies[1:], strict=True):
        assert reply.status == 200, reply.body
        done = rule(attachment.processor, attachment.custom_params)
        oracle.check(PROMPT, reply.output_ids, done)
        assert reply.output_ids != replies[0].output_ids, attachment


@pytest.mark.parametrize("attachment", [WORDS, ASKED[-1]], ids=["words", "thinking"])
def test_the_report_tells_exactly_which_tokens_were_forced(attachment, server, oracle):
    reply = server.post("/generate", asked(attachment))

    done = rule(attachment.processor, attachment.custom_params)
    left = [
        int(done(PROMPT, reply.output_ids[:position], row.clone()).isfinite().sum())
        for position, row in enumerate(oracle.logits(PROMPT, reply.output_ids))
    ]
    forced = {position for position, count in enumerate(left) if count == 1}
    told = reply.body["meta_info"]["sglang_lp"]
    assert 0 < len(forced) < len(left)
    assert {at for span in told["forced_at"] for at in range(*span)} == forced
    assert told["forced"] == len(forced)


def test_a_choice_ends_the_answer(server):
    reply = server.post("/generate", asked(ASKED[2]))

    assert reply.output_ids in ([A, B, EOS], [A, C, C, EOS])
    assert reply.finish_reason == {"type": "stop", "matched": EOS}


def test_forced_words_are_in_the_answer_before_it_ends(server):
    output = server.post("/generate", asked(WORDS)).output_ids

    before = [*pairwise(takewhile(lambda token_id: token_id != B, output))]
    assert (300, 301) in before
    assert (A, 302) in before
    assert (302, 303) in before


def loop(action):
    return attach(
        [
            attach("AllowedTokensLogitProcessor", token_ids=[300]),
            attach("LoopBreakerLogitProcessor", max_pattern_size=4, min_count=3, action=action),
        ]
    )


LOOP = loop("end")


def test_a_loop_ends_its_request_keeps_the_answer_and_says_so(server):
    reply = server.post("/generate", asked(LOOP))

    assert reply.status == 200
    assert reply.output_ids == [300] * 4
    assert reply.body["text"] == word(300) * 4
    assert reply.finish_reason == {"type": "stop", "matched": "loop: 1 tokens, 3 times"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_loop_truncates_its_answer_of_which_nothing_is_cut(server, stream):
    send = server.stream if stream else server.post
    reply = send("/generate", asked(loop("truncate")))

    assert reply.status == 200
    assert reply.output_ids == [300] * 4
    assert reply.finish_reason == {
        "type": "length",
        "length": 4,
        "reason": "loop: 1 tokens, 3 times",
    }


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_loop_truncates_an_openai_answer_too(server, path):
    prompt = {"prompt": "a"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "a"}]}
    body = {"model": "tiny", "temperature": 0, "max_tokens": 40, **prompt}
    reply = server.post(path, {**body, **loop("truncate").extra_body()})

    assert reply.status == 200
    (choice,) = reply.body["choices"]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("length", None)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_loop_ends_an_openai_request_too(server, path):
    prompt = {"prompt": "a"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "a"}]}
    reply = server.post(
        path, {"model": "tiny", "temperature": 0, "max_tokens": 40, **prompt, **LOOP.extra_body()}
    )

    assert reply.status == 200
    (choice,) = reply.body["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["matched_stop"] == "loop: 1 tokens, 3 times"
    assert reply.body["usage"]["completion_tokens"] == 4


def test_links_that_contradict_each_other_end_their_request_alone(server, oracle):
    conflict = attach(
        [
            attach("ForcedSequenceLogitProcessor", token_ids=[300, 301]),
            attach("DisallowedTokensLogitsProcessor", token_ids=[301]),
        ]
    )
    reply, beside = server.at_once([asked(conflict), body(PROMPT)])

    assert reply.status == 400
    assert re.fullmatch(
        r"no token is left at token 1 by ForcedSequenceLogitProcessor, "
        r"DisallowedTokensLogitsProcessor: token 301 \('.+'\) is both forced and banned; change "
        r"these processors, their parameters or the format that the request asks for",
        reply.body["error"]["message"],
    )
    oracle.check(PROMPT, beside.output_ids)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"chain": ["json:JSONDecoder"]}, "json:JSONDecoder"),
        (
            {"chain": ["support.processors.recording:DenseRaises"] * 2, "0.at": 9, "1.at": 9},
            "at most one DenseRaises",
        ),
        ({"chain": ["DRYLogitProcessor"], "0.dry_base": 0.5}, "0.dry_base"),
        ({"chain": ["DisallowedTokensLogitsProcessor"], "0.token_ids": [1024]}, "another model"),
    ],
)
def test_a_chain_that_cannot_be_is_refused(server, params, says):
    reply = server.post("/generate", body(PROMPT, builtins.ChainLogitProcessor, params))

    assert reply.status == 400
    assert says in str(reply.body)


def test_a_link_that_the_policy_allows_by_module_and_class_sees_the_exact_history(server):
    params = {
        "chain": ["support.processors.recording:Recorder", "DisallowedTokensLogitsProcessor"],
        "0.tag": "a link",
        "0.steering": False,
        "1.token_ids": [A],
    }
    reply = server.post("/generate", body(PROMPT, builtins.ChainLogitProcessor, params))

    assert reply.status == 200, reply.body
    lines = server.records("edit", tag="a link")
    assert [line["position"] for line in lines] == [*range(len(reply.output_ids))]
    assert all(line["fed"] == reply.output_ids[: line["position"]] for line in lines)
    assert A not in reply.output_ids
