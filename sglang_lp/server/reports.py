"""What an answer says of the processors that ran: in ``meta_info``, and in a header.

The scheduler's part travels as SGLang's ``customized_info``, with the last tokens of a request.
The header is written by the HTTP process, from what its gate admitted: names alone, because a
stream's header is sent before its first token.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp._engine.faults import from_signal
from sglang_lp._engine.rows import rows_of
from sglang_lp.client.answers import HEADER, KEY, POLICY_HEADER
from sglang_lp.server.host import PROCESSOR_FAILED
from sglang_lp.server.metrics import start, writing
from sglang_lp.server.versions import untested

__all__ = ["AnswerHeader", "make_begin", "ran", "report", "unwrap"]

if TYPE_CHECKING:
    from sglang_lp.server.guard import Guard

logger = logging.getLogger(__name__)

#: Most messages of a stream that wait for its request to be admitted.
_MOST_HELD = 8

#: The names of the HTTP request that is being answered; ``None`` in it until one is admitted.
_answering: ContextVar[list[dict[str, None] | None] | None] = ContextVar(
    "sglang_lp_answering", default=None
)


class _AtTheEnd(list[Any]):
    """A value of ``customized_info`` that goes out whole, however SGLang slices it by tokens."""

    def __getitem__(self, _which: Any) -> Any:
        return [*self]


def report(req: Any) -> None:
    """Put the report on a finished request where SGLang takes it up."""
    (row,) = rows_of([req.sampling_params.custom_params])
    if row is None:
        return
    kept = getattr(req, "finished_len", None)
    output_ids = req.output_ids if kept is None else req.output_ids[:kept]
    length = len(output_ids)
    acts = row.acts
    try:
        acts.finish(output_ids)
        forced = acts.forced.before(length)
        own = row.processor.report(row.request.params, req.origin_input_ids, output_ids, forced)
        known = {
            "processors": [*getattr(row.host, "names", ())],
            "policy": getattr(row.host, "policy", None),
            "forced": min(acts.forced.total, length),
            "edited": acts.edited.before(length),
        }
        # What is no JSON would end this process on its way to the next one.
        made = orjson.loads(orjson.dumps({**known, **own, **known}))
        metrics = writing()
        if metrics is not None:
            failed = getattr(req.finished_reason, PROCESSOR_FAILED, False)
            metrics.finish(made, failed=failed)
    except BaseException as error:
        if from_signal(error):
            raise
        logger.exception("%s: no report", row.processor.name)
        return
    given = getattr(req, "customized_info", None) or {}
    req.customized_info = {**given, KEY: _AtTheEnd([made])}


def unwrap(
    _result: None,
    _manager: Any,
    meta_info: dict[str, Any],
    state: Any,
    customized_info: dict[str, list[Any]],
    index: int,
    *_args: Any,
    **_kwargs: Any,
) -> None:
    """Keep the report itself: after ``TokenizerManager.update_request_meta_info``.

    SGLang makes a list with an entry for each token of it, and one of ``None`` for the other
    requests of the same message.
    """
    if KEY not in customized_info:
        return
    meta_info.pop(KEY, None)
    state.customized_info_accumulated.pop(KEY, None)
    state.customized_info_reported_keys.discard(KEY)
    values = customized_info[KEY][index]
    if values and values[-1] is not None:
        meta_info[KEY] = values[-1]


def ran(names: Iterable[str]) -> None:
    """Take down for the header that a request was admitted, and what it runs."""
    answering = _answering.get()
    if answering is not None:
        answering[0] = {**(answering[0] or {}), **dict.fromkeys(names)}


def _warnings() -> list[str]:
    """Return what stands behind the names in every header."""
    found = untested()
    return [] if found is None else [f"untested SGLang {found}"]


def _begins_stream(message: dict[str, Any]) -> bool:
    return message["type"] == "http.response.start" and any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )


class AnswerHeader:
    """Writes the headers: middleware, as ASGI knows it.

    Every answer has the policy's fingerprint, one that was admitted what ran on it.

    A stream that begins before its request is admitted, as that of ``/v1/responses`` does, waits
    for that: its first events say that it began.

    Args:
        app: What answers.
        fingerprint: Of the policy.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], fingerprint: str) -> None:
        self._app = app
        self._policy = (POLICY_HEADER.lower().encode(), fingerprint.encode())

    async def __call__(
        self, scope: dict[str, Any], receive: Any, send: Callable[..., Awaitable[None]]
    ) -> None:
        """Answer a request; name what ran if it was admitted by this process's gate."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answering: list[dict[str, None] | None] = [None]
        held: list[dict[str, Any]] = []

        async def sending(message: dict[str, Any]) -> None:
            named = answering[0]
            if named is None and _begins_stream(message):
                held.append(message)  # some streams begin before their request is admitted
                return
            ready = [*held, message]
            if held and named is None and message.get("more_body") and len(held) < _MOST_HELD:
                held.append(message)
                return
            held.clear()
            for one in ready:
                if one["type"] == "http.response.start":
                    added = [self._policy]
                    if named is not None:
                        said = ", ".join([*(named or ["none"]), *_warnings()])
                        value = said.encode("ascii", "backslashreplace")
                        added.append((HEADER.lower().encode(), value))
                    one["headers"] = [*one.get("headers", ()), *added]
                await send(one)

        token = _answering.set(answering)
        try:
            await self._app(scope, receive, sending)
        finally:
            _answering.reset(token)


def make_begin(guard: Guard) -> Any:
    """Return the hook that runs after ``TokenizerManager.__init__``.

    It begins to report in the HTTP process, whose server takes middleware until it runs: later.
    """

    def begin(_result: None, manager: Any, *_args: Any, **_kwargs: Any) -> None:
        start(manager.server_args)
        front = sys.modules.get("sglang.srt.entrypoints.http_server")
        app = getattr(front, "app", None)
        if app is None or any(one.cls is AnswerHeader for one in app.user_middleware):
            return  # an Engine without HTTP
        app.add_middleware(AnswerHeader, fingerprint=guard.fingerprint)

    return begin
