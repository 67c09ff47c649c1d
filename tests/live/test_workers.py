"""With several tokenizer workers every one of them is a guarded front end."""

from __future__ import annotations

import re
import time

import pytest

from sglang_lp import wire
from sglang_lp.builtins import ForcedSequenceLogitProcessor
from support.servers.asking import body
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, on_servers("tokenizer workers")]


def test_each_worker_serves_what_is_allowed_and_refuses_the_rest(server):
    # SGLang asks for the mask in the front end, where a stock worker unpickles the payload.
    allowed = body([5], ForcedSequenceLogitProcessor, {"token_ids": [7, 8, 9]}, max_new_tokens=3)
    payload = wire.payload_for("os", "abort")
    hostile = {**allowed, "custom_logit_processor": payload, "return_sampling_mask": True}
    _await_both_workers(server)
    answers = server.at_once([hostile, allowed] * 16)

    assert [answer.status for answer in answers] == [400, 200] * 16
    assert all(answer.output_ids == [7, 8, 9] for answer in answers[1::2])


def test_each_worker_brings_the_report_of_an_answer(server):
    asked = {
        "model": "tiny",
        "prompt": [5],
        "max_tokens": 3,
        "custom_logit_processor": "ForcedSequenceLogitProcessor",
        "custom_params": {"token_ids": [7, 8]},
        "return_meta_info": True,
    }

    for _ in range(8):  # either worker may answer
        reply = server.post("/v1/completions", asked)
        (choice,) = reply.body["choices"]
        assert choice["meta_info"]["sglang_lp"]["forced_at"] == [[0, 2]], reply.body


# Two requests with one id ended the detokenizer, or got pieces of each other's text.
def test_requests_of_two_workers_with_one_id_have_texts_of_their_own(server):
    def asked(token_id, rid):
        params = {"token_ids": [token_id] * 40}
        return {**body([5], ForcedSequenceLogitProcessor, params, max_new_tokens=40), "rid": rid}

    expected = {one: server.at_once([asked(one, f"alone {one}")])[0].body["text"] for one in (7, 8)}
    both = 0
    for attempt in range(8):
        answers = server.at_once([asked(7 + at % 2, f"shared {attempt}") for at in range(8)])
        taken = [at for at, answer in enumerate(answers) if answer.status == 200]
        both += len(taken) > 1
        for at in taken:
            assert answers[at].body["text"] == expected[7 + at % 2]

    assert both  # each worker takes one request with the id
    assert server.post("/generate", asked(7, "after")).status == 200


def _await_both_workers(server):
    """Wait until both workers have started: a server answers as soon as one has."""
    ends = time.monotonic() + 60
    while len({*re.findall(r"multi-tokenizer worker process (\d+)", server.log_text())}) < 2:
        assert time.monotonic() < ends, server.log_text()
        time.sleep(0.1)
