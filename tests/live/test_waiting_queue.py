"""A list of long prompts that are all in the cache: SGLang could begin all of them in one step."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_lp.builtins import DeepseekOCRNoRepeatNGramLogitProcessor
from support.oracles.greedy import rule
from support.servers.asking import body
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default", "eagle chains")]

#: Together more than is read between two steps, by twelve texts.
TEXTS, LONG, AT_ONCE = 52, 4_000, 36
PARAMS = {"ngram_size": 2, "window_size": 8_000}
COMMON = [100 + i * i % 700 for i in range(LONG)]
PROMPTS = [[*COMMON, 300 + number] for number in range(TEXTS)]


def listed(rids, tokens, params=PARAMS, **sampling):
    """Return the body of one HTTP request with all texts."""
    sampling["max_new_tokens"] = tokens
    one = body(COMMON, DeepseekOCRNoRepeatNGramLogitProcessor, params, **sampling)
    return {
        "input_ids": PROMPTS,
        "rid": rids,
        "custom_logit_processor": [one["custom_logit_processor"]] * TEXTS,
        "sampling_params": [one["sampling_params"]] * TEXTS,
    }


def send_while_paused(server, pool, request):
    """Send a request, and let the server take all of it before its next step."""
    server.post("/pause_generation", {"mode": "in_place"})
    try:
        coming = pool.submit(server.post, "/generate", request)
        time.sleep(3)
    finally:
        server.post("/continue_generation", {})
    return coming


def beginning(server, rids):
    """Return how many requests begin at each step."""
    steps = [{*step["rids"]} & {*rids} for step in server.records("step")]
    found, known = [], set()
    for step in steps:
        if step - known:
            found.append(len(step - known))
            known |= step
    assert known == {*rids}
    return found


def test_they_begin_a_few_at_a_time_and_every_token_is_exact(server, oracle):
    server.post("/generate", body(COMMON, max_new_tokens=1))
    rids = [f"waits {number}" for number in range(TEXTS)]
    with ThreadPoolExecutor() as pool:
        replies = send_while_paused(server, pool, listed(rids, 6)).result().body

    assert [len(reply["output_ids"]) for reply in replies] == [6] * TEXTS
    for number in (0, 1, AT_ONCE - 1, AT_ONCE, TEXTS - 1):
        oracle.check(
            PROMPTS[number],
            replies[number]["output_ids"],
            rule(DeepseekOCRNoRepeatNGramLogitProcessor, PARAMS),
        )
    begun = beginning(server, rids)
    if "speculative_algorithm" not in server.arguments:  # there fewer run at once
        assert begun[0] == AT_ONCE, "all of them were there"
    assert max(begun) <= AT_ONCE


def test_those_whose_grammars_are_compiled_meanwhile_wait_as_well(server):
    server.post("/generate", body(COMMON, max_new_tokens=1))
    rids = [f"compiles {number}" for number in range(TEXTS)]
    with ThreadPoolExecutor() as pool:
        # A rule that leaves what the grammar allows.
        params = PARAMS | {"ngram_size": 30}
        request = listed(rids, 4, params, regex="(ab|cd|ef){2}x?")
        replies = send_while_paused(server, pool, request).result().body

    assert {reply["meta_info"]["completion_tokens"] for reply in replies} == {4}
    assert all(reply["text"][:2] in {"ab", "cd", "ef"} for reply in replies)
    assert max(beginning(server, rids)) <= AT_ONCE


def test_those_that_wait_can_be_aborted(server):
    server.post("/generate", body(COMMON, max_new_tokens=1))
    with ThreadPoolExecutor() as pool:
        coming = send_while_paused(
            server, pool, listed([f"leaves {number}" for number in range(TEXTS)], 60)
        )
        server.post("/abort_request", {"rid": "", "abort_all": True})
        replies = coming.result().body

    ends = [reply["meta_info"]["finish_reason"]["type"] for reply in replies]
    assert set(ends) <= {"abort", "length"}
    assert ends.count("abort") >= TEXTS - AT_ONCE, "at least those that had to wait"
    assert server.post("/generate", body(PROMPTS[0], max_new_tokens=4)).status == 200
    assert server.is_healthy()
