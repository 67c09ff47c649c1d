"""Prefill and decode on two servers: errors and edits of the first token reach the decode server.

The prefill server samples the first token, the decode server all others, and the client gets the
decode server's answer. SGLang sends the decode server the KV cache and the token, but no error:
the decode server would wait until it gives up. So an error is sent as the reason of a failed
transfer. Edits of the first token are not sent: the decode server asks the processor again.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from queue import SimpleQueue
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp._engine.history.arrivals import ask_again
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.errors import SglangLpError, shown
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.scheduler.endings import end_at_first, end_request
from sglang_lp.server.scheduler.reasons import error_of, error_reason, finish_reason

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard

logger = logging.getLogger(__name__)

#: Path on SGLang's bootstrap server, which every prefill server runs: returns the policy.
_PATH = "/sglang_lp"
#: Most seconds for an answer.
_SECONDS = 5
#: Seconds after which a prefill server surely has the request that its decode server refuses.
_GRACE = 2.0
#: Most bytes of an answer: several times as many as a guarded server sends.
_LONGEST = 1024
#: Attribute of SGLang's record of a prefill server: why requests with it fail, or ``None``.
_UNGUARDED = "sglang_lp_unguarded"
#: Attribute of a request whose first token has come, and whose edits were not asked for again yet.
_FIRST = "sglang_lp_first"
#: An error of a prefill server, in SGLang's message of a failed transfer.
_TOLD = re.compile(r"KVTransferError\(bootstrap_room=\d+\): sglang-lp (\[.*)\Z")


class Peers:
    """The prefill or decode servers that work with this server. Its public methods are hooks.

    Args:
        guard: The guard of this process.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def answer(self, _result: None, server: Any) -> None:
        """Add a route that returns the policy to a prefill server's bootstrap server."""
        from aiohttp import web

        async def say(_request: Any) -> Any:
            return web.json_response({"policy": self._guard.fingerprint})

        server.app.router.add_get(_PATH, say)

    def ask(self, original: Callable[[Any, str], bool], manager: Any, bootstrap_addr: str) -> bool:
        """Ask a prefill server for its policy.

        Runs in the scheduler's thread, when a decode server first contacts a prefill server, and
        again after the prefill server was unreachable.
        """
        address = bootstrap_addr
        if not original(manager, address):
            return False
        info = manager.prefill_info_table.get(address)
        if info is None or hasattr(info, _UNGUARDED):  # forgotten meanwhile, or asked before
            return True
        try:
            policy = _policy_of(address)
        except Exception as error:  # noqa: BLE001 - as SGLang does: it asks again
            logger.warning(
                "sglang-lp: no answer from %s%s: %s",
                shown(address),
                _PATH,
                shown(str(error), 200),
            )
            manager.prefill_info_table.pop(address, None)
            return False
        why = None
        if policy is None:
            why = (
                f"the prefill server at {shown(address)[1:-1]} does not run sglang-lp, so it would "
                "unpickle what requests send and ignore the policy; install sglang-lp there and "
                "start it again"
            )
            logger.error("sglang-lp: %s", why)
        elif policy != self._guard.fingerprint:
            logger.warning(
                "sglang-lp: the prefill server at %s has another policy than this decode server: "
                "the first token of an answer and the others may follow different rules",
                shown(address),
            )
        setattr(info, _UNGUARDED, why)
        return True


# On a prefill server


def retire(original: Callable[[Any, Any], bool], scheduler: Any, req: Any) -> bool:
    """End a request at its first token: a hook around SGLang's end of an aborted request.

    Returns:
        Whether the request is over here. It is not while its decode server has not said where it
        listens: SGLang then waits for that, as for requests whose KV cache is being sent.
    """
    error = error_of(req.to_finish)
    if req.disagg_kv_sender is None or error is None:
        return original(scheduler, req)
    if not req.pending_bootstrap:
        _tell(req, error)
        return original(scheduler, req)
    req.update_finish_state()
    scheduler.disagg_prefill_inflight_queue.append(req)
    return False


def tell_when_bootstrapped(
    original: Callable[[Any, Any, Any], bool], scheduler: Any, req: Any, poll: Any
) -> bool:
    """Tell a decode server of an error once it listens: a hook around SGLang's wait for that."""
    ready = original(scheduler, req, poll)
    error = error_of(req.finished_reason)
    if ready and error is not None:
        _tell(req, error)
        return False  # no KV cache is sent, and SGLang finds the transfer failed
    return ready


def _tell(req: Any, error: Coded) -> None:
    manager = req.disagg_kv_sender.kv_mgr
    # Mooncake's messages leave out the reason unless this is set; its reader accepts a reason.
    manager.kv_status_msg_carries_reason = True
    manager.conclude_failure(bootstrap_room=req.bootstrap_room, failure_reason=_told(error))


def _told(error: Coded) -> str:
    return f"sglang-lp {error.text}"


# On a decode server


def say_why(
    original: Callable[..., None], req: Any, error_message: str, status_code: Any = None
) -> None:
    """Give the prefill server's error to the client: a hook around SGLang's own error."""
    told = _TOLD.search(error_message)
    coded = None if told is None else Coded.of_text(told[1])
    if coded is None:
        original(req, error_message, status_code)
        return
    original(req, coded.message, coded.status)
    req.finished_reason = error_reason(coded.as_error())


def _policy_of(address: str) -> str | None:
    """Return the fingerprint of a prefill server's policy, ``None`` if it is not guarded.

    A request may name any address, so of a foreign server's answer only ``_LONGEST`` bytes are
    read.

    Raises:
        OSError: It does not answer.
    """
    loop = asyncio.new_event_loop()
    try:
        content = loop.run_until_complete(_fetch(f"http://{address}{_PATH}"))
    finally:
        loop.close()  # does not wait for an address that cannot be resolved
    if content is None:
        return None
    try:
        policy = orjson.loads(content)["policy"]
    except (ValueError, KeyError, TypeError):
        return None
    return policy if isinstance(policy, str) else None


async def _fetch(url: str) -> bytes | None:
    """Return the body at a URL, read within ``_SECONDS``; ``None`` for an error or a long body."""
    import aiohttp  # SGLang's own

    limit = aiohttp.ClientTimeout(total=_SECONDS)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.get(url, allow_redirects=False) as response,
    ):
        if response.status != HTTPStatus.OK:
            return None
        content = await response.content.read(_LONGEST + 1)
        while len(content) <= _LONGEST and (more := await response.content.read(_LONGEST)):
            content += more
        return content if len(content) <= _LONGEST else None


class _DelayedCalls(threading.Thread):
    """Calls each function ``_GRACE`` seconds after it was added, in one thread."""

    def __init__(self) -> None:
        super().__init__(name="sglang-lp-later", daemon=True)
        self._waiting: SimpleQueue[tuple[float, Callable[[], Any]]] = SimpleQueue()

    def add(self, call: Callable[[], Any]) -> None:
        """Add a function."""
        self._waiting.put((monotonic() + _GRACE, call))

    def run(self) -> None:
        """Call the functions in the order in which they were added: all wait equally long."""
        while True:
            due, call = self._waiting.get()
            sleep(max(0.0, due - monotonic()))
            try:
                call()
            except Exception:  # the next functions are for other requests
                logger.exception("sglang-lp: a prefill server was not told")


@cache
def _delayed_calls() -> _DelayedCalls:
    thread = _DelayedCalls()
    thread.start()
    return thread


def turn_away(_result: None, receiver: Any, *_args: Any, **_kwargs: Any) -> None:
    """Fail a request whose prefill server is not guarded, once its receiver is made."""
    manager = receiver.kv_mgr
    why = getattr(manager.prefill_info_table.get(receiver.bootstrap_addr), _UNGUARDED, None)
    # SGLang sets bootstrap_infos last, and not where it has failed the request itself.
    if why is None or getattr(receiver, "bootstrap_infos", None) is None:
        return
    receiver.abort()
    manager.record_failure(receiver.bootstrap_room, _told(Coded(why, SglangLpError.code)))
    # abort() has sent one, which is lost if the prefill server has not read the request yet.
    _delayed_calls().add(receiver._send_abort_notification)  # noqa: SLF001 - SGLang has no other


def note_first(_result: None, _queue: Any, decode_req: Any) -> None:
    """Mark a request whose first token has come.

    :func:`resume` asks for its edits later, because many requests may come at once here.
    """
    req = decode_req.req
    if len(req.output_ids) == 1 and req.finished_reason is None:
        setattr(req, _FIRST, True)


def resume(req: Any, vocab_size: int | None) -> None:
    """Ask again for the edits of a first token, before its request joins a decode batch.

    The edits depend only on the prompt. They may end the request after that token.

    Args:
        req: SGLang's request.
        vocab_size: Number of logits in a row of the model, if known.
    """
    if not getattr(req, _FIRST, False):
        return
    delattr(req, _FIRST)
    for row in rows_of([req.sampling_params.custom_params]):
        if row is not None and vocab_size is not None:
            try:
                end = ask_again(row, vocab_size)
                if end is not None:
                    end_at_first(req, finish_reason(end, 1))
            except BaseException as error:  # noqa: BLE001 - one request, whatever it is
                end_request(req, row.fault(error))
