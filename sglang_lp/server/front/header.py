"""The header with the names of the processors that ran, as admitted by this process's gate.

A stream's header is sent before its first token, so it has only the names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

from sglang_lp.server.front.answer_errors import AnswerErrors, refusal
from sglang_lp.server.front.reports import AnswerReports, begins_stream
from sglang_lp.server.versions import untested
from sglang_lp.trust.audit import Asking, asking, safe_id
from sglang_lp.wire.names import CHOICES_HEADER, HEADER, POLICY_HEADER

#: Most messages of a stream that wait for its request to be admitted.
_MOST_HELD = 8

#: The names of the HTTP request that is being answered, in a list with one entry: ``None`` until a
#: request is admitted.
_answering: ContextVar[list[dict[str, None] | None] | None] = ContextVar(
    "sglang_lp_answering", default=None
)

#: The probabilities of the choices of the HTTP request that is being answered, once they are known.
_chances: ContextVar[list[float] | None] = ContextVar("sglang_lp_chances", default=None)

#: The ASGI scope of the HTTP request that is being answered.
_scope: ContextVar[dict[str, Any] | None] = ContextVar("sglang_lp_scope", default=None)

#: Key of the scope with the number of logprobs of prompts.
_LOGPROBS = "sglang_lp.logprobs"


def name_asking(rid: Any) -> None:
    """Name the request that is being checked to the audit trail."""
    asking.set(Asking(find_endpoint(), safe_id(rid)))


def find_endpoint(raw_request: Any = None) -> str | None:
    """Return the route of the HTTP request that is being answered, as its app spells it.

    Args:
        raw_request: The HTTP request, needed in another thread than the event loop's.
    """
    scope = getattr(raw_request, "scope", None) or _scope.get()
    return None if scope is None else getattr(scope.get("route"), "path", None)


def count_logprobs(number: int) -> int:
    """Return how many logprobs of prompts the HTTP request that is being answered asks for so far.

    Args:
        number: Those of one more of its texts.
    """
    scope = _scope.get()
    if scope is None:
        return 0  # a program with an Engine is the operator's own
    scope[_LOGPROBS] = scope.get(_LOGPROBS, 0) + number
    return int(scope[_LOGPROBS])


def record_ran(names: Iterable[str]) -> None:
    """Record for the header that a request was admitted, and its processors."""
    answering = _answering.get()
    if answering is not None:
        answering[0] = {**(answering[0] or {}), **dict.fromkeys(names)}


def record_probabilities(found: Iterable[float]) -> None:
    """Record the probabilities of a request's choices for the header."""
    chances = _chances.get()
    if chances is not None:
        chances[:] = found


def _warnings() -> list[str]:
    """Return the text that follows the names in every header."""
    found = untested()
    return [] if found is None else [f"untested SGLang {found}"]


class AnswerHeader:
    """Writes the headers: middleware, as ASGI knows it.

    Every answer has the policy's fingerprint. The answer to an admitted request also has the names
    of its processors and, if it is not streamed, the probabilities of its choices.

    A stream may begin before its request is admitted, as that of ``/v1/responses`` does. Its first
    events, which only say that it began, are held until then. If the request is refused, the client
    gets the refusal instead of the stream.

    Args:
        app: The ASGI app that answers.
        fingerprint: Fingerprint of the policy.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], fingerprint: str) -> None:
        self._app = app
        self._policy = (POLICY_HEADER.lower().encode(), fingerprint.encode())

    async def __call__(
        self, scope: dict[str, Any], receive: Any, send: Callable[..., Awaitable[None]]
    ) -> None:
        """Answer a request; name its processors if this process's gate has admitted it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answering: list[dict[str, None] | None] = [None]
        held: list[dict[str, Any]] = []
        chances: list[float] = []
        is_refused = False

        async def sending(message: dict[str, Any]) -> None:
            nonlocal is_refused
            named = answering[0]
            if named is None and begins_stream(message):
                held.append(message)  # some streams begin before their request is admitted
                return
            if is_refused:  # what is left of the stream
                return
            ready = [*held, message]
            if held and named is None:
                refused = refusal(scope)
                if refused is not None:
                    ready, is_refused = refused, True
                elif message.get("more_body") and len(held) < _MOST_HELD:
                    held.append(message)
                    return
            held.clear()
            for one in ready:
                if one["type"] == "http.response.start":
                    one["headers"] = [*one.get("headers", ()), *self._headers(named, chances)]
                await send(one)

        token, token_of_scope = _answering.set(answering), _scope.set(scope)
        token_of_chances = _chances.set(chances)
        try:
            await self._app(scope, receive, sending)
        finally:
            _answering.reset(token)
            _chances.reset(token_of_chances)
            _scope.reset(token_of_scope)

    def _headers(
        self, named: Iterable[str] | None, chances: Iterable[float]
    ) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer, given the names of what runs if it was admitted."""
        if named is None:
            return [self._policy]
        said = ", ".join([*(named or ["none"]), *_warnings()])
        found = [self._policy, (HEADER.lower().encode(), said.encode("ascii", "backslashreplace"))]
        told = ", ".join(f"{chance:.6g}" for chance in chances)
        return [*found, (CHOICES_HEADER.lower().encode(), told.encode())] if told else found


def add_middleware(app: Any, fingerprint: str) -> None:
    """Add headers, reports and codes of errors to the answers of SGLang's HTTP app.

    Args:
        app: SGLang's app, not yet running: a running app takes no middleware.
        fingerprint: Fingerprint of the policy.
    """
    app.add_middleware(AnswerHeader, fingerprint=fingerprint)
    app.add_middleware(AnswerReports)
    app.add_middleware(AnswerErrors)
