"""A session keeps SGLang's requests; what this toolkit keeps of them goes when they are over."""

from __future__ import annotations

import pytest

from sglang_lp.builtins import (
    DeepseekOCRNoRepeatNGramLogitProcessor,
    ForcedSequenceLogitProcessor,
)
from sglang_lp.server.versions import has_beam_search
from support.models.tiny_model import EOS
from support.oracles.greedy import rule
from support.processors import recording
from support.servers.asking import body
from support.servers.census import census
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

NGRAM = DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 2, "window_size": 100}
WORDS = [*range(301, 312)]
FORCED = ForcedSequenceLogitProcessor, {"token_ids": WORDS, "eos_token_ids": [EOS]}


@pytest.fixture
def session(server):
    opened = server.post("/open_session", {"capacity_of_str_len": 10_000})
    assert opened.status == 200, opened.body
    yield opened.body
    server.post("/close_session", {"session_id": opened.body})


def history(server, session, rid):
    """Return the tokens before those of a turn after another."""
    asked = {**body([9], max_new_tokens=1), "return_logprob": True, "logprob_start_len": 0}
    reply = server.post("/generate", turn(session, asked, rid))
    return [token for _, token, _ in reply.body["meta_info"]["input_token_logprobs"]][:-1]


def turn(session, asked, rid=None):
    return {**asked, "session_params": {"id": session, "rid": rid}}


@on_servers("default")
def test_state_goes_with_each_turn_of_an_open_session(server, session):
    rid = None
    for number in range(3):
        asked = body([5, 6 + number], *NGRAM, max_new_tokens=20)
        reply = server.post("/generate", turn(session, asked, rid))
        assert reply.status == 200, reply.body
        rid = reply.body["meta_info"]["id"]
    failed = body([5], recording.Leaves, {"at": 2, "what": "SystemExit"})
    assert server.post("/generate", turn(session, failed, rid)).status == 500
    left = body([5], *NGRAM, max_new_tokens=1000)
    assert server.stream("/generate", turn(session, left, rid), leave_after=3).status == 200

    census(server, f"census of {session}")


@on_servers("default")
def test_a_turn_sees_what_came_before_it_as_its_prompt(server, session, oracle):
    first = server.post("/generate", turn(session, body([5, 6], *NGRAM)))
    second = server.post(
        "/generate", turn(session, body([9, 300], *NGRAM), first.body["meta_info"]["id"])
    )

    oracle.check([5, 6], first.output_ids, rule(*NGRAM))
    prompt = [5, 6, *first.output_ids, 9, 300]
    oracle.check(prompt, second.output_ids, rule(*NGRAM))


@on_servers("default")
@pytest.mark.skipif(not has_beam_search(), reason="this SGLang has no beam_width")
def test_a_turn_is_edited_whatever_its_beam_width(server, session, oracle):
    """SGLang ignores ``beam_width`` in a session."""
    reply = server.post("/generate", turn(session, body([5, 6], *NGRAM, beam_width=2)))

    oracle.check([5, 6], reply.output_ids, rule(*NGRAM))


@on_servers("default")
def test_the_gate_of_the_scheduler_holds_in_a_session(server, session):
    refused = body([5], *NGRAM)
    refused["sampling_params"]["custom_params"] = {"ngram_size": 2}
    assert server.post("/generate", turn(session, refused)).status == 400
    smuggled = {**body([5]), "rid": f"remote code: {session}"}
    assert server.post("/generate", turn(session, smuggled)).status == 400
    assert server.is_healthy()


@on_servers("default", "ngram trees, mixed chunks", "eagle chains")
@pytest.mark.parametrize("what", ["forced", "failed", "stopped"])
def test_a_turn_has_before_it_what_the_client_got(server, session, what):
    """A step may commit drafts behind the end, and a token that failed edits did not see."""
    asked = {
        "forced": body([5, 6], *FORCED),
        "failed": body([5, 6], recording.Leaves, {"at": 5, "what": "SystemExit"}),
        "stopped": body([5, 6], *FORCED, stop_token_ids=[WORDS[6]]),
    }[what]
    asked["rid"] = f"{what} in {session}"

    reply = server.stream("/generate", turn(session, asked))

    got = next(event["output_ids"] for event in reply.events[::-1] if "output_ids" in event)
    assert len(got) == {"forced": 12, "failed": 5, "stopped": 7}[what], reply
    assert history(server, session, asked["rid"]) == [5, 6, *got]
