"""Texts of requests with one id, which two tokenizer workers received, are decoded apart.

SGLang's detokenizer has one state for each id. With two requests of one id it mixed their texts,
and the end of one ended the detokenizer, and so the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def decode_apart(original: Callable[[Any, Any], Any], detokenizer: Any, recv_obj: Any) -> Any:
    """Decode a batch by ids that no other worker has: a hook."""
    rids, workers = recv_obj.rids, recv_obj.http_worker_ipcs
    if not any(workers or ()):  # one worker
        return original(detokenizer, recv_obj)
    recv_obj.rids = [f"{worker} {rid}" for worker, rid in zip(workers, rids, strict=True)]
    try:
        return original(detokenizer, recv_obj)
    finally:
        recv_obj.rids = rids
