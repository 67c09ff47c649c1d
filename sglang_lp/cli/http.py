"""Requests to a server or a router, for the verbs that send some."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NamedTuple

import orjson

from sglang_lp.errors import SglangLpError, UsageError, shown

_SECONDS = 120
#: Largest answer that is read.
_MAX_BYTES = 4 << 20


class NoAnswer(SglangLpError):
    """A server did not answer a request."""


class HttpAnswer(NamedTuple):
    """An HTTP answer.

    Attributes:
        status: HTTP status.
        headers: Lower-case names.
        body: Parsed JSON, or text.
    """

    status: int
    headers: Mapping[str, str]
    body: Any


def base_of(url: str, option: str) -> str:
    """Return the part of a URL before the paths of endpoints.

    Args:
        url: The URL.
        option: The option that it was given as, for the message.

    Raises:
        UsageError: It is not an HTTP URL.
    """
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"{option}: expected a URL, http://... or https://..., got {shown(url)}")
    return url.rstrip("/").removesuffix("/v1")


def told(answer: HttpAnswer) -> str:
    """Return an answer as text that can be printed safely."""
    return f"HTTP {answer.status}: {shown(str(answer.body), 400)}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Returns a redirect as the answer: the request and the key were meant for one host."""

    def redirect_request(self, *_args: Any) -> None:
        """Return no request."""


_open = urllib.request.build_opener(_NoRedirects).open


def request(  # noqa: PLR0913 - each is of its own
    method: str, url: str, path: str, body: Any = None, *, key: bool = True, most: int = _MAX_BYTES
) -> HttpAnswer:
    """Send a request; the answer may be a refusal.

    Args:
        method: HTTP method.
        url: As :func:`base_of` returned it.
        path: Path of the endpoint, added to ``url``.
        body: JSON, or ``None``.
        key: Whether ``OPENAI_API_KEY`` is sent, if it is set: only where a user gave the host.
        most: Largest answer that is read, in bytes.

    Raises:
        NoAnswer: No answer came, or one that is not HTTP.
        SglangLpError: The answer is too large.
    """
    data = None if body is None else orjson.dumps(body)
    headers = {"Content-Type": "application/json"}
    secret = os.environ.get("OPENAI_API_KEY")
    if key and secret:
        headers["Authorization"] = f"Bearer {secret}"
    try:
        asked = urllib.request.Request(  # noqa: S310 - checked before
            url + path, data, headers, method=method
        )
        try:
            response = _open(asked, timeout=_SECONDS)
        except urllib.error.HTTPError as refusal:
            response = refusal
        with response:
            content = response.read(most + 1)
            if len(content) > most:
                raise SglangLpError(f"{path}: expected an answer of at most {most >> 20} MiB")
            return _answer(response.status, response.headers, content)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: no such host can be
        why = str(getattr(error, "reason", error))
        raise NoAnswer(f"{path}: no answer: {shown(why, 200)}") from error


def _answer(status: int, headers: Any, content: bytes) -> HttpAnswer:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = content.decode(errors="replace")
    return HttpAnswer(status, {name.lower(): value for name, value in headers.items()}, body)
