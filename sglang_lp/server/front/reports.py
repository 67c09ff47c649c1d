"""The report in answers of OpenAI's and Ollama's endpoints, for requests with ``return_meta_info``.

SGLang itself writes ``meta_info`` only into chats that are not streamed. Its entries stay as
SGLang writes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from functools import partial
from typing import Any

import orjson

from sglang_lp.wire.names import REPORT

_STREAMS = b"text/event-stream", b"application/x-ndjson"
#: Entries of SGLang's ``meta_info`` that are written into answers: ``loss_mask`` needs both.
_WRITTEN = (REPORT, "completion_tokens")


class _AskedReports:
    """Reports that an HTTP request asked for, collected while it is answered.

    Attributes:
        reports: The ``meta_info`` to write into the choices, by index; ``None`` if the request
            does not ask for it.
        event: The newest event of the answer.
    """

    reports: dict[int, Any] | None = None
    event = b""


_asked: ContextVar[_AskedReports | None] = ContextVar("sglang_lp_asked", default=None)


def ask(_serving: Any, request: Any, raw_request: Any = None) -> None:
    """Record whether a request asks for its report, before SGLang reads the request."""
    asked, body = _asked.get(), getattr(raw_request, "_json", None)
    if asked is None or not isinstance(body, Mapping) or body.get("return_meta_info") is not True:
        return
    asked.reports = {}
    if getattr(request, "stream", False) and hasattr(request, "return_meta_info"):
        request.return_meta_info = False  # SGLang refuses it with a stream


def ask_in(options: Mapping[str, Any]) -> None:
    """Record whether the options of a request to Ollama's endpoints ask for its report."""
    asked = _asked.get()
    if asked is not None and options.get("return_meta_info") is True:
        asked.reports = {}


def collect(original: Callable[..., AsyncIterator[Any]], *args: Any, **kwargs: Any) -> Any:
    """Keep the reports of a request's answers: a hook around SGLang's generation."""
    asked, answers = _asked.get(), original(*args, **kwargs)
    if asked is None or asked.reports is None:
        return answers
    return _collecting(answers, asked.reports)


async def _collecting(answers: Any, reports: dict[int, Any]) -> AsyncIterator[Any]:
    async with aclosing(answers):
        async for answer in answers:
            for index, one in enumerate(answer if isinstance(answer, list) else [answer]):
                meta = one["meta_info"]
                if REPORT in meta:
                    reports[one.get("index", index)] = {key: meta[key] for key in _WRITTEN}
            yield answer


def begins_stream(message: dict[str, Any]) -> bool:
    """Tell whether an ASGI message begins a stream, of events or of Ollama's lines of JSON."""
    return message["type"] == "http.response.start" and any(
        name.lower() == b"content-type" and value.startswith(_STREAMS)
        for name, value in message.get("headers", ())
    )


class AnswerReports:
    """ASGI middleware that writes the reports into answers.

    A whole answer has a report as ``meta_info`` of each choice. A stream has the reports in a
    separate event before its last event. A response (``/v1/responses``) has no choices, so its
    report is ``meta_info`` of the response itself; so is that of Ollama's answers, whose streams
    have it in their last line.

    Args:
        app: The ASGI app that answers.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: dict[str, Any], receive: Any, send: Callable[..., Awaitable[None]]
    ) -> None:
        """Answer a request, with its reports if the client asked for them."""
        asked, held = _AskedReports(), []

        async def sending(message: dict[str, Any]) -> None:
            reports = asked.reports
            if reports is None:
                await send(message)
            elif message["type"] == "http.response.start":
                if begins_stream(message):
                    await send(message)
                else:
                    held.append(message)
            elif not held:
                await send({**message, "body": _in_event(asked, reports, message.get("body", b""))})
            else:
                held.append(message)
                if not message.get("more_body"):
                    await send_whole(held, partial(_reported, reports), send)

        token = _asked.set(asked)
        try:
            await self._app(scope, receive, sending)
        finally:
            _asked.reset(token)


async def send_whole(
    messages: list[dict[str, Any]],
    change: Callable[[bytes], bytes],
    send: Callable[..., Awaitable[None]],
) -> None:
    """Send an answer that is not streamed, with another body.

    Args:
        messages: All of its ASGI messages, the start first.
        change: Returns the body to send, given the body.
        send: ASGI's function.
    """
    start, *parts = messages
    body = change(b"".join(part.get("body", b"") for part in parts))
    headers = [one for one in start["headers"] if one[0].lower() != b"content-length"]
    await send({**start, "headers": [*headers, (b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def _reported(reports: Mapping[int, Any], body: bytes) -> bytes:
    """Return the body of an answer with its reports."""
    return orjson.dumps(_with_reports(orjson.loads(body), reports)) if reports else body


def _with_reports(answer: dict[str, Any], reports: Mapping[int, Any]) -> dict[str, Any]:
    """Write reports into a whole answer."""
    if answer.get("object") == "response" or answer.get("done"):
        return {**answer, "meta_info": reports[0]}
    for choice in answer.get("choices", ()):
        if choice["index"] in reports:
            choice.setdefault("meta_info", reports[choice["index"]])
    return answer


def _in_event(asked: _AskedReports, reports: Mapping[int, Any], body: bytes) -> bytes:
    """Return an event of a stream; the reports come with the last event."""
    if reports and body.startswith(b"event: response."):
        name, _, data = body.partition(b"\ndata: ")
        event = orjson.loads(data)
        if event["type"] in ("response.completed", "response.incomplete"):
            event["response"] = _with_reports(event["response"], reports)
            return b"%s\ndata: %s\n\n" % (name, orjson.dumps(event))
    elif reports and body.startswith(b"{") and b'"done":true' in body:  # a line of Ollama's
        return orjson.dumps(_with_reports(orjson.loads(body), reports)) + b"\n"
    elif reports and body.startswith(b"data: [DONE]") and b'"error"' not in asked.event[:16]:
        return b"data: %s\n\n%s" % (orjson.dumps(_last_event(asked.event, reports)), body)
    asked.event = body
    return body


def _last_event(newest: bytes, reports: Mapping[int, Any]) -> dict[str, Any]:
    """Return an event that repeats no content of the previous event and has the reports."""
    event = orjson.loads(newest.removeprefix(b"data: "))
    nothing: dict[str, Any] = (
        {"text": ""} if event["object"] == "text_completion" else {"delta": {}}
    )
    event["choices"] = [
        {"index": index, **nothing, "finish_reason": None, "meta_info": meta}
        for index, meta in sorted(reports.items())
    ]
    return {**event, "usage": None}
