"""Placeholder requests that release the peer server after a refusal (prefill and decode apart).

The peer may have admitted the request, and would wait for this server's half of it. So a
placeholder takes over the request's bootstrap room and ends at once: on a decode server with the
token that the prefill server sends, on a prefill server with the refusal, which SGLang passes to
the decode server.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Any

from sglang_lp.errors import RequestError
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.gate.reserved_keys import REFUSAL, add_own

logger = logging.getLogger(__name__)

#: Strong references to the tasks: an event loop keeps no task alive.
_tasks: set[asyncio.Task[None]] = set()


@contextmanager
def sending_placeholder(manager: Any, obj: Any) -> Iterator[None]:
    """Send a placeholder for a request that the block refuses, so that the peer does not wait.

    Args:
        manager: SGLang's ``TokenizerManager``.
        obj: The request as the client sent it, or as SGLang normalized it.
    """
    try:
        yield
    except Exception as error:
        is_awaited = getattr(obj, "bootstrap_room", None) is not None
        mode = manager.server_args.disaggregation_mode if is_awaited else "null"
        if mode != "null":
            said = Coded(str(getattr(error, "detail", error)), RequestError.code)
            _send_all(manager, obj, mode, Coded.of_exception(error) or said)
        raise


def _send_all(manager: Any, obj: Any, mode: str, why: Coded) -> None:
    try:
        placeholders = [_make(one, mode, why.text) for one in _each(obj)]
    except Exception as error:  # noqa: BLE001 - SGLang refuses it on the peer as well
        logger.debug("sglang-lp: no placeholder: %s", error)
        return
    loop = asyncio.get_running_loop()
    for placeholder in placeholders:
        # In a new context: the placeholder must not change the headers of the current request.
        task = loop.create_task(_end(manager, placeholder), context=Context())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)


def _each(obj: Any) -> Iterator[Any]:
    """Yield the requests of a body, which may be a list."""
    if not hasattr(obj, "is_single"):
        obj = copy.copy(obj)
        obj.normalize_batch_and_arguments()
    if obj.is_single:
        yield obj
    else:
        yield from (obj[i] for i in range(len(obj.bootstrap_room)))


def _make(one: Any, mode: str, why: str) -> Any:
    placeholder = type(one)(
        sampling_params={"max_new_tokens": 1, "temperature": 0},
        bootstrap_host=one.bootstrap_host,
        bootstrap_port=one.bootstrap_port,
        bootstrap_room=one.bootstrap_room,
        bootstrap_pair_key=one.bootstrap_pair_key,
        decode_tp_size=one.decode_tp_size,
        routed_dp_rank=one.routed_dp_rank,
        disagg_prefill_dp_rank=one.disagg_prefill_dp_rank,
    )
    if mode == "decode":  # as long as what the prefill server sends
        placeholder.text, placeholder.input_ids = one.text, one.input_ids
    else:
        placeholder.input_ids = [0]
        placeholder.sampling_params["custom_params"] = add_own(None, REFUSAL, why)
    return placeholder


async def _end(manager: Any, placeholder: Any) -> None:
    try:
        async for _ in manager.generate_request(placeholder):
            pass
    except Exception as error:  # noqa: BLE001 - the client has its answer
        logger.debug("sglang-lp: a placeholder ended: %s", error)
