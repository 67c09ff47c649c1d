"""The stable code of each error of the toolkit, in the error objects of SGLang's answers.

SGLang passes on only the message of an error, and has another error object on each endpoint. So
errors are noted per HTTP request where they are raised, and added to the answer as it is sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson

from sglang_lp.errors import NotRun, ProcessorFault, SglangLpError
from sglang_lp.server.front.reports import begins_stream, send_whole
from sglang_lp.server.front.routes import OLLAMA, find
from sglang_lp.server.gate.coded import Coded

#: Key of the ASGI scope that holds the errors, for functions that SGLang runs in other threads.
_SCOPE = "sglang_lp_errors"
_DATA = b"data: "
#: Codes of the errors that no caller causes.
_FAULTS = {SglangLpError.code, ProcessorFault.code, NotRun.code}

#: The errors of the HTTP request that is being answered, by their messages.
_noted: ContextVar[_Noted | None] = ContextVar("sglang_lp_errors", default=None)


class _Noted(dict[str, Coded]):
    """The errors of an HTTP request, by their messages.

    Attributes:
        told: Messages of the errors whose code an error of the answer has.
    """

    def __init__(self) -> None:
        self.told: set[str] = set()

    def find(self, message: object) -> Coded | None:
        """Return the toolkit's error behind an error of the answer; ``None`` for SGLang's own.

        Args:
            message: Message of the error in the answer.
        """
        text = str(message)
        if text not in self:
            # Some endpoints of SGLang change or hide the message.
            untold = [one for one in self.values() if one.message not in self.told]
            if not untold:
                return None
            self[text] = untold[-1]
        self.told.add(self[text].message)
        return self[text]


def note(coded: Coded | None, raw_request: Any = None) -> None:
    """Note an error of the HTTP request that is being answered.

    Args:
        coded: The error; ``None`` for an error that is not the toolkit's.
        raw_request: The HTTP request, needed in another thread than the event loop's.
    """
    scope = getattr(raw_request, "scope", None)
    noted = _noted.get() if scope is None else scope.get(_SCOPE)
    if noted is not None and coded is not None:
        noted[coded.message] = coded


@contextmanager
def noting(raw_request: Any = None) -> Iterator[None]:
    """Note the error that passes through the block.

    Args:
        raw_request: As for :func:`note`.
    """
    try:
        yield
    except Exception as error:
        note(Coded.of(error), raw_request)
        raise


def refusal(scope: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the ASGI messages of a refusal, with HTTP 400; :class:`AnswerErrors` completes it.

    Args:
        scope: The ASGI scope of an HTTP request that was not admitted.

    Returns:
        ``None`` unless the last error of the request is the caller's fault.
    """
    last = next(reversed(scope.get(_SCOPE, {}).values()), None)
    if last is None or last.code in _FAULTS:
        return None
    status = HTTPStatus.BAD_REQUEST
    error = {"message": last.message, "type": "invalid_request_error", "code": status}
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
        noted = _Noted()
        held: list[dict[str, Any]] = []
        streams = False

        async def sending(message: dict[str, Any]) -> None:
            nonlocal streams
            if held:
                held.append(message)
                if not message.get("more_body"):
                    change = _in_ollamas_form if _is_ollama(scope) else _completed
                    await send_whole(held, partial(change, noted), send)
            elif message["type"] == "http.response.start":
                streams = begins_stream(message)
                is_error = not streams and message["status"] >= HTTPStatus.BAD_REQUEST
                if is_error and (noted or _is_ollama(scope)):
                    held.append(message)
                else:
                    await send(message)
            elif noted and streams:
                await send({**message, "body": _in_events(message.get("body", b""), noted)})
            else:
                await send(message)

        scope[_SCOPE] = noted
        token = _noted.set(noted)
        try:
            await self._app(scope, receive, sending)
        finally:
            _noted.reset(token)


def _in_events(body: bytes, noted: _Noted) -> bytes:
    """Return events of a stream with their errors completed."""
    if b'"error"' not in body:
        return body
    lines = body.split(b"\n")
    for index, line in enumerate(lines):
        if line.startswith(_DATA + b"{"):
            lines[index] = _DATA + _completed(noted, line.removeprefix(_DATA))
        elif line.startswith(b'{"error"'):  # Ollama's lines
            lines[index] = _in_ollamas_form(noted, line)
    return b"\n".join(lines)


def _completed(noted: _Noted, text: bytes) -> bytes:
    """Return JSON with its error completed; unchanged if it has none."""
    try:
        answer = orjson.loads(text)
        error = _error_of(answer)
        if error is None:
            return text
        coded = noted.find(error.get("message"))
        if coded is None:
            return text
        error.update(coded.entries)
        return orjson.dumps(answer)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # it reads deeper than it writes
        return text


def _is_ollama(scope: Mapping[str, Any]) -> bool:
    route = find(scope)
    return route is not None and route.shape is OLLAMA


def _in_ollamas_form(noted: _Noted, text: bytes) -> bytes:
    """Return an error in the form of Ollama's: its message as ``error``, with code and field."""
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = str(error.get("message", error) if isinstance(error, dict) else error)
    coded = noted.find(message)
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
