"""An abort reaches the request with exactly its id, in whatever queue SGLang holds it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.managers.io_struct import AbortReq

from sglang_lp.server.gate.any_worker import for_any_worker
from sglang_lp.server.scheduler.aborts import Aborts


class Req:
    def __init__(self, rid, worker=None):
        self.rid, self.http_worker_ipc = rid, worker


def aborted(asked, *reqs, waiting=()):
    """Return the ids of the requests that SGLang's comparison of beginnings finds."""
    aborts, found = Aborts(), []
    for req in reqs:
        aborts.know(None, req)
    receiver = SimpleNamespace(waiting_list=[*waiting])
    scheduler = SimpleNamespace(mm_receiver=receiver)

    def sglangs(_scheduler, recv_req):
        all_of_them = *reqs, *receiver.waiting_list
        named = [req for req in all_of_them if req.rid.startswith(recv_req.rid)]
        found.extend(all_of_them if recv_req.abort_all else named)

    ids = [req.rid for req in reqs]
    aborts.abort(sglangs, scheduler, asked)
    assert [req.rid for req in reqs] == ids
    return [(req.rid, req.http_worker_ipc) for req in found]


def ipc(worker, rid):
    asked = AbortReq(rid=rid)
    asked.http_worker_ipc = worker
    return asked


REQS = [Req("a"), Req("ab"), Req("a_0"), Req("b"), Req("")]


@pytest.mark.parametrize(
    ("rid", "found"), [("a", ["a"]), ("ab", ["ab"]), ("a_", []), ("", []), ("abc", [])]
)
def test_an_abort_finds_no_id_that_only_begins_with_its_own(rid, found):
    assert aborted(AbortReq(rid=rid), *REQS) == [(one, None) for one in found]


def test_abort_all_finds_all():
    assert len(aborted(AbortReq(abort_all=True), *REQS)) == len(REQS)


def test_a_request_that_waits_for_images_is_found_by_its_own_id_only():
    waiting = [Req("image"), Req("image 2")]
    assert aborted(AbortReq(rid="image"), waiting=waiting) == [("image", None)]
    assert [req.rid for req in waiting] == ["image", "image 2"]


def test_an_abort_of_a_worker_finds_only_the_requests_of_this_worker():
    reqs = [Req("same", "one"), Req("same", "two")]
    assert aborted(ipc("one", "same"), *reqs) == [("same", "one")]
    assert aborted(ipc("three", "same"), *reqs) == []


def test_an_abort_for_requests_of_another_worker_finds_them():
    asked = for_any_worker("theirs")
    asked.http_worker_ipc = "one"
    assert aborted(asked, Req("theirs", "two"), Req("theirs 2", "two")) == [("theirs", "two")]


def test_ids_come_back_where_sglang_fails():
    aborts, req = Aborts(), Req("ab")
    aborts.know(None, req)

    def fails(*_):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        aborts.abort(fails, SimpleNamespace(mm_receiver=None), AbortReq(rid="a"))
    assert req.rid == "ab"


def test_nothing_is_kept_of_a_request_that_is_gone():
    aborts = Aborts()
    aborts.know(None, Req("a"))
    assert not [*aborts._requests]
