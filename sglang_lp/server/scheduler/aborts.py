"""Aborts in the scheduler reach the request with exactly the id that they name.

SGLang compares beginnings in each of its queues: ``a`` ends ``abc`` as well. Requests that an abort
does not name have no id while SGLang looks for it, so no queue has to be known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any
from weakref import WeakSet

from sglang_lp.server.gate.any_worker import is_for_any_worker


class Aborts:
    """The requests of one scheduler process. Its public methods are hooks."""

    def __init__(self) -> None:
        self._requests: WeakSet[Any] = WeakSet()

    def know(self, _result: None, req: Any, *_args: Any, **_kwargs: Any) -> None:
        """Add a request that SGLang has made."""
        self._requests.add(req)

    def abort(self, original: Callable[[Any, Any], None], scheduler: Any, recv_req: Any) -> None:
        """Abort all requests, or the one that is named."""
        if recv_req.abort_all:
            return original(scheduler, recv_req)
        if not recv_req.rid:
            return None  # every id begins with nothing
        others = [(one, one.rid) for one in self._others(scheduler, recv_req)]
        for one, _ in others:
            one.rid = ""
        try:
            return original(scheduler, recv_req)
        finally:
            for one, rid in others:
                one.rid = rid

    def _others(self, scheduler: Any, recv_req: Any) -> Iterator[Any]:
        """Yield the requests whose ids begin alike, and that the abort is not for.

        Two tokenizer workers may have given their requests the same id.
        """
        rid, worker = recv_req.rid, recv_req.http_worker_ipc
        for_any = is_for_any_worker(recv_req)
        # Requests that wait for images of an encoder server are not made yet.
        waiting = () if scheduler.mm_receiver is None else scheduler.mm_receiver.waiting_list
        for one in chain(self._requests, waiting):
            if one.rid.startswith(rid) and (
                one.rid != rid or not (for_any or getattr(one, "http_worker_ipc", worker) == worker)
            ):
                yield one
