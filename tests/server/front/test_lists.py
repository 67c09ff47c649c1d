"""Lists are checked between other requests, and aborts find the requests of a list."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front import lists
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.front.bounds import MAX_STREAMED
from sglang_lp.server.front.families import Families
from sglang_lp.server.front.lists import Lists
from sglang_lp.server.gate.guard import Guard
from sglang_lp.trust import Policy

BANS = "DisallowedTokensLogitsProcessor"


def manager(aborts=None):
    return SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=2_000, hf_eos_token_id={2}),
        server_args=SimpleNamespace(speculative_algorithm=None, tokenizer_worker_num=1),
        rid_to_state={},
        preferred_sampling_params=None,
        abort_request=None if aborts is None else aborts.append,
    )


def body(count, name="a", last=0):
    params = [{"token_ids": [at]} for at in range(count - 1)] + [{"token_ids": [last]}]
    return SimpleNamespace(
        batch_size=count,
        rid=[f"{name}_{at}" for at in range(count)],
        text=["text"] * count,
        custom_logit_processor=[BANS] * count,
        sampling_params=[{"custom_params": one} for one in params],
        max_thinking_tokens=None,
    )


async def sglangs(_manager, obj, *_args):
    """Stand in for SGLang's handling of a list."""
    yield f"sent {obj.rid[0]}"
    yield "answered"


@pytest.fixture
def checking(monkeypatch):
    """Return checks of lists whose slices have no length."""
    monkeypatch.setattr(lists, "_SLICE", 0.0)
    return Lists(Admission(Guard(Policy())), Families(Guard(Policy())))


async def collected(answers):
    return [one async for one in answers]


def test_the_event_loop_runs_between_the_requests_of_a_list(checking):
    async def main():
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                await asyncio.sleep(0)
                beats += 1

        task = asyncio.create_task(beat())
        answers = await collected(checking.admit(sglangs, manager(), body(500), "request", {}))
        task.cancel()
        return answers, beats

    answers, beats = asyncio.run(main())
    assert answers == ["sent a_0", "answered"]
    assert beats >= 500


def test_in_one_slice_the_event_loop_waits(checking, monkeypatch):
    monkeypatch.setattr(lists, "_SLICE", 60.0)
    step = checking.admit(sglangs, manager(), body(500)).asend(None)
    with pytest.raises(StopIteration, match="sent a_0"):
        step.send(None)  # the first suspension is SGLang's answer


def test_nothing_of_a_list_is_sent_where_its_last_request_is_refused(checking):
    def unreachable(*_):
        raise AssertionError

    with pytest.raises(RequestError, match="token_ids"):
        asyncio.run(collected(checking.admit(unreachable, manager(), body(50, last=5_000))))
    assert checking._checked == []


def test_sglangs_answers_end_where_the_client_goes(checking):
    ended = []

    async def handle(*_):
        try:
            yield "sent"
            yield "never asked for"
        finally:
            ended.append(True)

    async def main():
        answers = checking.admit(handle, manager(), body(2))
        assert await anext(answers) == "sent"
        await answers.aclose()
        assert ended == [True]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("abort", "at_once", "later"),
    [
        (("a_1",), [], ["a_1"]),
        (("a_",), [("a_", False)], []),
        (("b_1",), [("b_1", False)], []),
        (("",), [("", False)], []),
        (("", True), [("", True)], ["a_0", "a_1", "a_2"]),
    ],
)
def test_an_abort_of_a_list_that_is_checked_comes_once_it_is_sent(checking, abort, at_once, later):
    events, direct = [], []

    async def handle(*_):
        events.append("sent")
        await asyncio.sleep(0)
        yield "answered"

    async def main():
        answers = checking.admit(handle, manager(events), body(3))
        waiting = asyncio.create_task(anext(answers))
        await asyncio.sleep(0)  # in the middle of the check
        checking.abort(lambda _manager, *given: direct.append(given), manager(), *abort)
        assert (events, direct) == ([], at_once)
        await waiting

    asyncio.run(main())
    assert events == ["sent", *later]


def test_outside_of_checks_an_abort_is_sglangs(checking):
    given = []
    front = manager()
    checking.abort(lambda *args: given.append(args), front, "a_1")
    assert given == [(front, "a_1", False)]


def test_a_list_that_was_cancelled_is_forgotten(checking):
    async def main():
        waiting = asyncio.create_task(collected(checking.admit(sglangs, manager(), body(50))))
        await asyncio.sleep(0)
        assert len(checking._checked) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert checking._checked == []


def test_a_streamed_list_has_a_bounded_number_of_requests_that_differ():
    from fastapi import HTTPException

    admission = Admission(Guard(Policy()))
    admission.admit_stream(manager(), body(MAX_STREAMED, last=1_999))
    same = body(MAX_STREAMED + 1)
    same.sampling_params = same.sampling_params[:1] * (MAX_STREAMED + 1)
    admission.admit_stream(manager(), same)
    plain = body(MAX_STREAMED + 1)
    plain.custom_logit_processor = None
    plain.sampling_params = [{"max_new_tokens": at} for at in range(MAX_STREAMED + 1)]
    admission.admit_stream(manager(), plain)
    with pytest.raises(HTTPException, match=r"at most 1024 texts .* differ, got 1025; set stream"):
        admission.admit_stream(manager(), body(MAX_STREAMED + 1, last=1_999))
    for _ in admission.check_list(manager(), body(MAX_STREAMED + 1, last=1_999)):
        pass  # between two slices, other requests get their turn
