"""A processor that fails ends its own request, with an error that names it, and nothing else."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.processors import recording
from support.servers.asking import body, recorder
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]

#: Processor, its parameters other than the position, and a part of the message.
FAULTS = [
    (recording.Raises, {}, "KeyError"),
    (recording.OutOfVocabulary, {}, "token id 1024 is outside the vocabulary of 1024 tokens"),
    (recording.BansAll, {}, "no token is left: every token is banned"),
    (recording.DenseRaises, {}, "RuntimeError"),
    (recording.WrongShape, {}, "of shape (1, 1023), expected a tensor of floats of shape (1, 1024"),
    (recording.NotATensor, {}, "it returned NoneType, expected a tensor of floats of shape (1, 10"),
    (recording.WritesNaN, {}, "NaN"),
    # Each of these left apply_custom_logit_processor once, and ended the scheduler.
    *((recording.Leaves, {"what": what}, what) for what in recording.NEVER_RAISED),
]
fault = pytest.mark.parametrize(("processor", "params", "why"), FAULTS)
at = pytest.mark.parametrize("position", [0, 3])


def expected(processor, position, why):
    def is_it(message):
        return message.startswith(f"{processor.__name__} failed at token {position}: ") and (
            why in message
        )

    return is_it


def test_an_unlisted_class_is_refused(server):
    reply = server.post("/generate", body([5], recording.Unlisted, {}))
    assert reply.status == 400
    assert "got the class 'support.processors.recording:Unlisted'" in reply.body["error"]["message"]


@fault
@at
def test_the_client_gets_http_500_and_the_reason(server, processor, params, why, position):
    reply = server.post("/generate", body([5], processor, {**params, "at": position}))
    assert reply.status == 500
    assert expected(processor, position, why)(reply.body["message"]), reply.body


@fault
def test_a_stream_ends_with_the_reason_after_what_was_good(server, processor, params, why):
    reply = server.stream("/generate", body([5], processor, {**params, "at": 3}))
    reason = reply.finish_reason
    assert (reason["type"], reason["status_code"]) == ("abort", 500)
    assert expected(processor, 3, why)(reason["message"]), reason
    good = server.post("/generate", body([5])).output_ids
    assert reply.events[-2]["output_ids"] == good[: len(reply.events[-2]["output_ids"])]


def test_a_chat_client_gets_the_reason(server):
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "?"}],
        "temperature": 0,
        "max_tokens": 20,
        "custom_logit_processor": recording.Raises.to_str(),
        "custom_params": {"at": 3},
    }
    reply = server.post("/v1/chat/completions", chat)
    assert reply.status == 500
    assert reply.body["message"].startswith("Raises failed at token 3: 'KeyError: ")
    reply = server.stream("/v1/chat/completions", chat)
    assert re.search(r"Raises failed at token 3: \W*KeyError: ", str(reply.events[-2:]))


def test_neighbours_get_what_they_get_without_the_faults(server):
    neighbours = [
        *(body([300 + i, 7], max_new_tokens=80) for i in range(4)),
        *(recorder([400 + i, 7], steering=True, max_new_tokens=80) for i in range(4)),
    ]
    alone = [reply.output_ids for reply in server.at_once(neighbours)]
    faulty = [
        body([5], processor, {**params, "at": at})
        for processor, params, _ in FAULTS
        for at in (0, 3, 30)
    ]
    with ThreadPoolExecutor(2) as pool:
        attacked = pool.submit(server.at_once, neighbours)
        failed = pool.submit(server.at_once, faulty, 0.01)
    assert [reply.status for reply in failed.result()] == [500] * len(faulty)
    assert [reply.output_ids for reply in attacked.result()] == alone
    assert server.is_healthy()


# SGLang itself made an instance for every prefill batch, outside of any try.
@pytest.mark.parametrize("copies", [1, 3])
def test_a_constructor_that_raises_ends_its_own_request(server, copies):
    unmakeable = body([5], recording.Unmakeable, {}, n=copies)
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(server.post, "/generate", body([300, 7]))
        reply = server.post("/generate", unmakeable)
    assert reply.status == 500
    assert reply.body["message"].startswith("Unmakeable failed before its request began: ")
    assert beside.result().output_ids == server.post("/generate", body([300, 7])).output_ids
