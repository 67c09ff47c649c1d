"""The mark of an abort that reaches requests of every tokenizer worker."""

from __future__ import annotations

from typing import Any

#: ``abort_message`` of SGLang's ``AbortReq``. SGLang tells an empty text from no text nowhere.
_MARK = ""


def for_any_worker(rid: str) -> Any:
    """Return SGLang's message that aborts the request with an id, whichever worker received it."""
    from sglang.srt.managers.io_struct import AbortReq

    return AbortReq(rid=rid, abort_message=_MARK)


def is_for_any_worker(recv_req: Any) -> bool:
    """Tell whether SGLang's ``AbortReq`` reaches requests of every worker."""
    return recv_req.http_worker_ipc is None or recv_req.abort_message == _MARK
