"""An operator's actions on a running server do not change the history that processors see."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_lp.builtins import (
    DeepseekOCRNoRepeatNGramLogitProcessor,
    ForcedSequenceLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from support.models.tiny_model import FREQUENT
from support.oracles.greedy import rule
from support.processors.recording import Recorder
from support.servers.asking import body, recorder, tag
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]

#: Running when something happens: three seconds at least.
LENGTH, STEP_SECONDS = 200, 0.015
KINDS = [
    (DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 2, "window_size": 100}),
    (ForcedSequenceLogitProcessor, {"token_ids": [*range(300, 300 + LENGTH)]}),
    (
        ThinkingBudgetLogitProcessor,
        {
            "thinking_budget": 40,
            "thinking_start_token_id": FREQUENT[0],
            "thinking_end_token_id": FREQUENT[1],
            "new_line_token_id": FREQUENT[2],
        },
    ),
]


def requests():
    rng = random.Random(5)
    prompts = [[rng.randrange(2, 1024) for _ in range(20)] for _ in range(4)]
    first, *others = prompts
    return [
        recorder(first, steering=True, seconds=STEP_SECONDS, max_new_tokens=LENGTH),
        *(
            body(prompt, *kind, max_new_tokens=LENGTH)
            for prompt, kind in zip(others, KINDS, strict=True)
        ),
    ]


def told(server, path, asked=None):
    reply = server.post(path, asked or {})
    assert reply.status == 200, reply.body


def weights(server, **asked):
    """Load the same weights once more."""
    told(
        server,
        "/update_weights_from_disk",
        {"model_path": str(server.arguments["model_path"]), **asked},
    )


def pause_in_place(server):
    told(server, "/pause_generation", {"mode": "in_place"})
    time.sleep(0.5)
    told(server, "/continue_generation")


def pause_and_retract(server):
    told(server, "/pause_generation", {"mode": "retract"})
    told(server, "/flush_cache")
    told(server, "/continue_generation")


def update_in_place(server):
    told(server, "/pause_generation", {"mode": "in_place"})
    weights(server, flush_cache=False)
    told(server, "/continue_generation")


def update_and_retract(server):
    told(server, "/pause_generation", {"mode": "retract"})
    weights(server)
    told(server, "/continue_generation")


@pytest.mark.parametrize(
    "disturb",
    [
        pause_in_place,
        pause_and_retract,
        update_in_place,
        update_and_retract,
    ],
)
def test_a_running_request_goes_on_as_if_nothing_had_been(server, oracle, disturb):
    bodies, since = requests(), server.recorded()
    with ThreadPoolExecutor(len(bodies)) as pool:
        running = [pool.submit(server.post, "/generate", one) for one in bodies]
        while not server.records("edit", since=since, tag=tag(bodies[0])):
            time.sleep(0.01)
        try:
            disturb(server)
        finally:  # also for the tests that come after a failure
            told(server, "/continue_generation")
        assert not all(one.done() for one in running), "it came too late to disturb anything"
        replies = [one.result() for one in running]
    kinds = [(Recorder, bodies[0]["sampling_params"]["custom_params"]), *KINDS]
    for request, reply, kind in zip(bodies, replies, kinds, strict=True):
        assert reply.status == 200, reply.body
        assert len(reply.output_ids) == LENGTH
        oracle.check(request["input_ids"], reply.output_ids, rule(*kind))


def test_between_requests_the_cache_goes_and_the_weights_come_anew(server, oracle):
    asked = body([*range(400, 440)], *KINDS[0], max_new_tokens=30)
    replies = [server.post("/generate", asked)]
    told(server, "/flush_cache")
    replies.append(server.post("/generate", asked))
    weights(server)
    replies.append(server.post("/generate", asked))

    for reply in replies:
        oracle.check(asked["input_ids"], reply.output_ids, rule(*KINDS[0]))
