"""The requests that SGLang makes of one HTTP request are found by the client's rid."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
from types import SimpleNamespace

import pytest
from fastapi import HTTPException
from sglang.srt.managers.io_struct import GenerateReqInput

from sglang_lp.errors import RequestError
from sglang_lp.server.front import families
from sglang_lp.server.front.families import Families, abort_anywhere
from sglang_lp.server.gate.guard import Guard
from sglang_lp.trust import Policy
from sglang_lp.trust.audit import asking, safe_id


class State:
    def __init__(self, obj):
        self.obj = obj


class Manager:
    """The parts of SGLang's ``TokenizerManager`` that families read."""

    def __init__(self, workers=1):
        self.rid_to_state, self.aborted, self.sent = {}, [], []
        self.server_args = SimpleNamespace(tokenizer_worker_num=workers)
        self.abort_request, self._dispatch_to_scheduler = self.aborted.append, self.sent.append

    def init(self, found, obj):
        parts = [obj] if getattr(obj, "is_single", True) else [obj[i] for i in range(len(obj.rid))]
        for part in parts:
            self.rid_to_state[part.rid] = State(part)
        found.join(None, self, obj)

    def begin(self, found, rid, count=1, n=1):
        """Take a body as SGLang does, with its copies; return it."""
        text = "text" if count == 1 else ["text"] * count
        obj = GenerateReqInput(text=text, rid=rid, sampling_params={"n": n})
        found.begin(self, obj)
        obj.normalize_batch_and_arguments()
        self.init(found, obj)
        if n > 1:
            for i in range(count):
                for _ in range(n):
                    one = copy.copy(obj[i])
                    one.regenerate_rid()
                    self.init(found, one)
            for initial in obj.rid:
                del self.rid_to_state[initial]
        return obj


def test_an_id_means_its_own_request_and_a_rid_all_of_its_texts_and_copies():
    found, manager = Families(Guard(Policy())), Manager()
    kept = [
        manager.begin(found, "one"),
        manager.begin(found, "two", count=2),
        manager.begin(found, "copies", n=3),
        manager.begin(found, "both", count=2, n=2),
        manager.begin(found, ["x", "y"], count=2),
    ]

    assert found.members(manager, "one") == ["one"]
    assert found.members(manager, "two") == ["two_0", "two_1"]
    assert found.members(manager, "two_1") == ["two_1"]
    assert len({*found.members(manager, "copies")}) == 3
    assert len({*found.members(manager, "both")}) == 4
    assert {*found.members(manager, "both")}.isdisjoint(found.members(manager, "copies"))
    assert found.members(manager, "x") == ["x"]
    assert found.members(manager, "nobody") == ["nobody"]
    assert len(kept) == 5


@pytest.mark.parametrize(("count", "n"), [(1, 1), (2, 1), (1, 2)])
def test_a_rid_that_runs_is_refused_until_it_is_over(count, n):
    found, manager = Families(Guard(Policy())), Manager()
    first = manager.begin(found, "mine", count, n)
    again = GenerateReqInput(text="text", rid="mine", stream=True)

    with pytest.raises(RequestError, match=r"rid: .*'mine'"):
        found.begin(manager, again)
    with pytest.raises(HTTPException, match="rid"):
        found.abort_later(manager, again)
    assert first.rid
    manager.rid_to_state.clear()
    found.begin(manager, again)


def test_after_a_stream_only_its_own_requests_are_aborted(monkeypatch):
    monkeypatch.setattr(families, "_GRACE", 0.0)
    found, manager = Families(Guard(Policy())), Manager()
    left = manager.begin(found, "left", n=2)
    over = manager.begin(found, "over")
    tasks = [found.abort_later(manager, one) for one in (left, over)]
    del manager.rid_to_state["over"]
    newer = manager.begin(found, "over")

    for task in tasks:
        asyncio.run(task())

    assert sorted(manager.aborted) == sorted(found.members(manager, "left"))
    assert newer.rid not in manager.aborted


def test_a_refused_stream_aborts_nothing(monkeypatch):
    monkeypatch.setattr(families, "_GRACE", 0.0)
    found, manager = Families(Guard(Policy())), Manager()
    first = manager.begin(found, "mine")
    again = GenerateReqInput(text="text", rid="mine", stream=True)
    again.is_single = True  # refused later than before its status
    asyncio.run(found.abort_later(manager, again)())

    assert (manager.aborted, first.rid) == ([], "mine")


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeated_rid_is_a_refusal_that_counts(stream):
    guard, manager = Guard(Policy()), Manager()
    refused = []
    guard.audit.refused = lambda gate, error: refused.append((asking.get().rid, error.code))
    found = Families(guard)
    manager.begin(found, "mine")
    again = GenerateReqInput(text="text", rid="mine", stream=stream)
    with pytest.raises(HTTPException if stream else RequestError, match="still runs"):
        found.abort_later(manager, again) if stream else found.begin(manager, again)

    assert refused == [(safe_id("mine"), RequestError.code)]


def test_an_abort_for_another_worker_goes_to_the_scheduler():
    alone, among = Manager(), Manager(workers=2)
    among.begin(Families(Guard(Policy())), "mine")

    assert not abort_anywhere(alone, "theirs")
    assert not abort_anywhere(among, "mine")
    assert abort_anywhere(among, "theirs")
    assert [one.rid for one in among.sent] == ["theirs"]


def test_nothing_is_kept_of_a_request_that_is_over():
    found, manager = Families(Guard(Policy())), Manager()
    gc.disable()
    try:
        manager.begin(found, "mine", count=2, n=2)
        manager.rid_to_state.clear()
        assert not [*found._named]
    finally:
        gc.enable()


def test_sglang_can_still_pickle_a_request():
    obj = Manager().begin(Families(Guard(Policy())), "mine")
    assert pickle.loads(pickle.dumps(obj)).rid == "mine"
