"""Asking a server which requests its scheduler still keeps anything of."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING, Any

from support.processors.recording import Census
from support.servers.asking import body

if TYPE_CHECKING:
    from support.servers.server import Server

#: A slow machine takes minutes for the last request whose client is gone.
_SECONDS = 300


def census(server: Server, name: str) -> dict[str, Any]:
    """Return the objects that are alive once the scheduler is idle.

    SGLang keeps its last batches until the next batches, so several requests ask. It ends requests
    whose client is gone some seconds late.

    Args:
        server: Allows :class:`support.processors.recording.Census`.
        name: Name of this census, used once.

    Raises:
        AssertionError: Some request is kept, though nothing runs.
    """
    deadline = time.monotonic() + _SECONDS
    for number in count():
        time.sleep(1)
        rid = f"{name} {number}"
        reply = server.post(
            "/generate", {**body([5], Census, {"tag": rid}, max_new_tokens=3), "rid": rid}
        )
        assert reply.status == 200, reply.body  # noqa: PLR2004
        (counted,) = server.records("census", tag=rid)
        strangers = [row for row in counted["rows"] if not row.startswith(name)]
        if not strangers:
            break
        assert time.monotonic() < deadline, strangers
    assert counted["requests"] == len(counted["rows"]) <= 2  # noqa: PLR2004
    return counted
