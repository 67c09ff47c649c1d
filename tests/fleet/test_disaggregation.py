"""Prefill and decode on two servers: as one server, and nobody waits for what one of them knows."""

from __future__ import annotations

import random
import time

import pytest

from sglang_lp import builtins
from support import tiny_model
from support.asking import body
from support.disaggregated import missing, pair
from support.eager import CHAIN, CHOICE, START, THINKING
from support.greedy import Oracle, free, rule
from support.recording import Finishes, Raises, Recorder
from support.server import launch
from support.servers import POLICY
from support.tiny_model import EOS, FREQUENT

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

VARIABLES = {"SGLANG_LP_POLICY": str(POLICY)}
CASES = [
    None,
    (builtins.BadWordsLogitProcessor, {"token_ids": [*FREQUENT], "lengths": [2, 1, 2]}),
    CHAIN,
    CHOICE,
    (builtins.DisallowedTokensLogitsProcessor, {"token_ids": [*FREQUENT]}),
    (builtins.ForcedSequenceLogitProcessor, {"token_ids": [*range(300, 310)]}),
    (builtins.ForcedSequenceLogitProcessor, {"token_ids": [301], "eos_token_ids": [EOS]}),
    (builtins.LoopBreakerLogitProcessor, {"max_pattern_size": 3, "min_count": 2}),
    (builtins.MinLengthLogitProcessor, {"min_tokens": 20, "eos_token_ids": [EOS, *FREQUENT]}),
    (builtins.DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 1, "window_size": 20}),
    (builtins.DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 2, "window_size": 100}),
    (builtins.ThinkingBudgetLogitProcessor, {"thinking_budget": 0, **THINKING}),
    (builtins.ThinkingBudgetLogitProcessor, {"thinking_budget": 1, **THINKING}),
    (builtins.ThinkingBudgetLogitProcessor, {"thinking_budget": 5, **THINKING}),
    (Recorder, {"tag": "a", "steering": True}),
]
#: Allowed and disallowed at once: no token is left, which is known once there are logits.
IMPOSSIBLE = (
    builtins.ChainLogitProcessor,
    {
        "chain": ["AllowedTokensLogitProcessor", "DisallowedTokensLogitsProcessor"],
        "0.token_ids": [400],
        "1.token_ids": [400],
    },
)
#: SGLang's own patience is 300 s, and that of these servers a minute.
AT_ONCE = 15


def requests():
    """Return greedy requests of every kind, with short prompts and long ones."""
    rng = random.Random(3)
    bodies = []
    for kind in CASES:
        for length in (1, 7, 90):
            prompt = [rng.randrange(2, 1024) for _ in range(length)]
            if length == 7:
                prompt.append(START)
            answer = rng.choice((1, 2, 24))
            bodies.append(body(prompt, *(kind or ()), max_new_tokens=answer))
    return bodies


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="module")
def single(tiny, tmp_path_factory):
    """What one guarded server answers to :func:`requests`."""
    directory = tmp_path_factory.mktemp("single")
    with launch(tiny, directory, {"chunked_prefill_size": 64}, variables=VARIABLES) as server:
        return server.at_once(requests()), [server.post("/generate", one) for one in LAST]


@pytest.fixture(scope="module")
def both(tiny, tmp_path_factory):
    directory = tmp_path_factory.mktemp("pair")
    with pair(tiny, directory, ({"chunked_prefill_size": 64}, VARIABLES), ({}, VARIABLES)) as both:
        yield both


#: Ends and errors at the first token.
LAST = [
    body([5, 6], Finishes, {"at": 0}),
    body([5, 6], Finishes, {"at": 0}, max_new_tokens=1),
    body([5, 6], Finishes, {"at": 1}),
    body([5, 6], *IMPOSSIBLE),
    body([5, 6], Raises, {"at": 0}),
    body([5, 6], Raises, {"at": 3}),
]


def told(reply):
    """Return what an answer says: tokens, why it ended and what ran, or the error."""
    if reply.status != 200:
        return reply.status, reply.body["message"]
    meta = reply.body["meta_info"]
    return reply.output_ids, meta["finish_reason"], meta.get("sglang_lp")


def test_every_answer_is_that_of_a_single_server(single, both):
    replies = both.at_once(requests())
    for request, alone, reply in zip(requests(), single[0], replies, strict=True):
        assert told(reply) == told(alone), request


@pytest.mark.parametrize("at", range(len(LAST)))
def test_an_end_or_error_is_that_of_a_single_server_and_at_once(single, both, at):
    began = time.monotonic()
    answers = both.ask("/generate", LAST[at])

    assert told(answers.decode) == told(single[1][at])
    assert time.monotonic() - began < AT_ONCE  # both have answered


def test_a_streamed_answer_is_the_same(single, both):
    bodies = requests()[::5]
    for request, alone in zip(bodies, single[0][::5], strict=True):
        assert told(both.stream("/generate", request)) == told(alone)


def test_sampled_answers_keep_to_the_rules(tiny, both):
    oracle = Oracle(tiny)
    for kind in CASES[1:]:
        request = body([*range(40, 60)], *kind, temperature=1.0, max_new_tokens=20)
        reply = both.post("/generate", request)
        assert reply.status == 200, reply.body
        oracle.check(request["input_ids"], reply.output_ids, rule(*kind), sampled=True)


REFUSED = body([5], builtins.ForcedSequenceLogitProcessor, {"token_ids": [1 << 30]})


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_both_refuse_is_refused_at_once(both, stream):
    began = time.monotonic()
    answers = both.ask("/generate", REFUSED, stream=stream)

    assert [answer.status for answer in answers] == [400, 400]
    assert "1073741824" in str(answers.decode.body)
    assert time.monotonic() - began < AT_ONCE


@pytest.mark.parametrize("refusing", ["prefill", "decode"])
def test_a_request_that_one_server_refuses_leaves_neither_waiting(both, refusing):
    plain = body([*range(50)], max_new_tokens=30)
    sent, to_prefill = (plain, REFUSED) if refusing == "prefill" else (REFUSED, plain)
    began = time.monotonic()
    answers = both.ask("/generate", sent, to_prefill=to_prefill)

    assert getattr(answers, refusing).status == 400
    if refusing == "prefill":
        assert answers.decode.status == 400
        assert "1073741824" in str(answers.decode.body)
    assert time.monotonic() - began < AT_ONCE
    # Nothing of it is left over.
    assert both.post("/generate", plain).status == 200


def test_without_a_processor_they_answer_as_the_model_does(tiny, both):
    request = body([*range(300, 320)])
    Oracle(tiny).check(request["input_ids"], both.post("/generate", request).output_ids, free)
