"""The stable code of each error of the toolkit, in the error objects of SGLang's answers.

SGLang's endpoints pass on only the message of an error, and each writes another error object. But
an endpoint asks for the next answer of a request only after it has sent the error of the last. So
an error in the body is that of the newest answer or exception, and gets its code as it is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson

from sglang_lp.server.front.reports import begins_stream, send_whole
from sglang_lp.server.front.routes import OLLAMA, find
from sglang_lp.server.gate.coded import Coded

#: Key of the ASGI scope that holds the newest error, for functions that SGLang runs in other
#: threads.
_SCOPE = "sglang_lp_error"
_DATA = b"data: "


class _Newest:
    """The newest answer or exception of an HTTP request.

    Attributes:
        error: Its error; ``None`` without one, and for SGLang's own.
    """

    error: Coded | None = None


#: Of the HTTP request that is being answered.
_newest: ContextVar[_Newest | None] = ContextVar("sglang_lp_error", default=None)


@contextmanager
def noting(raw_request: Any = None) -> Iterator[None]:
    """Note the error that passes through the block.

    Args:
        raw_request: The HTTP request, needed in another thread than the event loop's.
    """
    try:
        yield
    except Exception as error:
        scope = getattr(raw_request, "scope", None)
        newest = _newest.get() if scope is None else scope.get(_SCOPE)
        if newest is not None:
            newest.error = Coded.of_exception(error)
        raise


async def keep_code(
    original: Callable[..., Awaitable[Any]], manager: Any, out: Any, *args: Any, **kwargs: Any
) -> Any:
    """Give the exception that SGLang raises for a failed answer its code: a hook around it."""
    coded = Coded.of_reason(out["meta_info"]["finish_reason"])
    try:
        return await original(manager, out, *args, **kwargs)
    except Exception as error:
        if coded is not None:
            raise error from coded.as_error()
        raise


def follow(original: Callable[..., AsyncIterator[Any]], *args: Any, **kwargs: Any) -> Any:
    """Note the error of each answer of a request: a hook around SGLang's generation."""
    newest, answers = _newest.get(), original(*args, **kwargs)
    return answers if newest is None else _following(answers, newest)


async def _following(answers: Any, newest: _Newest) -> AsyncIterator[Any]:
    with noting():
        async with aclosing(answers):
            async for answer in answers:
                if isinstance(answer, dict):  # a list has no error: SGLang raises one
                    newest.error = Coded.of_reason(answer["meta_info"].get("finish_reason"))
                yield answer


def refusal(scope: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the ASGI messages of a refusal, with HTTP 400; :class:`AnswerErrors` completes it.

    Args:
        scope: The ASGI scope of an HTTP request that was not admitted.

    Returns:
        ``None`` unless the newest error of the request is the caller's fault.
    """
    newest: Coded | None = getattr(scope.get(_SCOPE), "error", None)
    if newest is None or not newest.by_client:
        return None
    status = HTTPStatus.BAD_REQUEST
    error = {"message": newest.message, "type": "invalid_request_error", "code": status}
    body = orjson.dumps({"error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return [
        {"type": "http.response.start", "status": status, "headers": headers},
        {"type": "http.response.body", "body": body},
    ]


class AnswerErrors:
    """ASGI middleware that adds code and field to the errors of an answer.

    Args:
        app: The ASGI app that answers.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: dict[str, Any], receive: Any, send: Callable[..., Awaitable[None]]
    ) -> None:
        """Answer a request."""
        if scope["type"] != "http":  # the app's own life would keep what it notes
            await self._app(scope, receive, send)
            return
        newest = _Newest()
        held: list[dict[str, Any]] = []
        streams = False

        async def sending(message: dict[str, Any]) -> None:
            nonlocal streams
            if held:
                held.append(message)
                if not message.get("more_body"):
                    change = _in_ollamas_form if _is_ollama(scope) else _completed
                    await send_whole(held, partial(change, newest.error), send)
            elif message["type"] == "http.response.start":
                streams = begins_stream(message)
                is_error = not streams and message["status"] >= HTTPStatus.BAD_REQUEST
                if is_error and (newest.error is not None or _is_ollama(scope)):
                    held.append(message)
                else:
                    await send(message)
            elif newest.error is not None and streams:
                body = _in_events(newest.error, message.get("body", b""))
                await send({**message, "body": body})
            else:
                await send(message)

        scope[_SCOPE] = newest
        token = _newest.set(newest)
        try:
            await self._app(scope, receive, sending)
        finally:
            _newest.reset(token)


def _in_events(coded: Coded, body: bytes) -> bytes:
    """Return events of a stream with their errors completed."""
    if b'"error"' not in body:
        return body
    lines = body.split(b"\n")
    for index, line in enumerate(lines):
        if line.startswith(_DATA + b"{"):
            lines[index] = _DATA + _completed(coded, line.removeprefix(_DATA))
        elif line.startswith(b'{"error"'):  # Ollama's lines
            lines[index] = _in_ollamas_form(coded, line)
    return b"\n".join(lines)


def _completed(coded: Coded | None, text: bytes) -> bytes:
    """Return JSON with its error completed; unchanged if it has none."""
    try:
        answer = orjson.loads(text)
        error = _error_of(answer)
        if error is None or coded is None:
            return text
        error.update(coded.entries)
        return orjson.dumps(answer)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # it reads deeper than it writes
        return text


def _is_ollama(scope: Mapping[str, Any]) -> bool:
    route = find(scope)
    return route is not None and route.shape is OLLAMA


def _in_ollamas_form(coded: Coded | None, text: bytes) -> bytes:
    """Return an error in the form of Ollama's: its message as ``error``, with code and field."""
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = str(error.get("message", error) if isinstance(error, dict) else error)
    return orjson.dumps({"error": message, **(coded.entries if coded is not None else {})})


def _error_of(answer: Any) -> dict[str, Any] | None:
    """Return SGLang's error object in an answer or an event, or ``None``."""
    if not isinstance(answer, dict):
        return None
    response = answer.get("response")  # of an event of /v1/responses
    for holder in (answer, response if isinstance(response, dict) else {}):
        if isinstance(holder.get("error"), dict):
            return holder["error"]  # type: ignore[no-any-return]
    return answer if answer.get("object") == "error" else None
