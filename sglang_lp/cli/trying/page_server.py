"""The HTTP server of the page, on loopback, which sends what the page asks to one server only.

The page sends requests with the key of the person who runs the command. So its address has a
secret, and a request for another host (DNS rebinding) or from another page is refused.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

import msgspec
import orjson

from sglang_lp.cli.trying.target import Target, Wish
from sglang_lp.errors import shown
from sglang_lp.trace.page import colours, sources

#: Largest form that is read, in bytes.
_MAX_BYTES = 1 << 20
#: Most digits of a length that is read as a number.
_MAX_DIGITS = 9
_JSON = "application/json"
#: The page loads nothing from elsewhere. The trace in its frame has the page's policy too.
_POLICY = (
    "default-src 'none'; script-src 'self' {script}; style-src 'self' {style}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class PageServer(ThreadingHTTPServer):
    """Serves the page until it is shut down.

    Args:
        target: The server that is tried.

    Attributes:
        page: Address of the page, which a browser on this machine can open.
    """

    daemon_threads = True

    def __init__(self, target: Target) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.host = f"127.0.0.1:{self.server_port}"
        self.place = f"/{secrets.token_urlsafe(16)}/"
        self.page = f"http://{self.host}{self.place}"
        read = {name: _read(name) for name in ("page.html", "page.css", "page.js")}
        self.files = {
            "": ("text/html", read["page.html"]),
            "page.css": ("text/css", colours() + read["page.css"]),
            "page.js": ("text/javascript", read["page.js"]),
        }


class _RefusedPage(Exception):
    """A request of a browser that is not answered. Its arguments: a status and the reason."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, make: Callable[[str], tuple[str, str]]) -> None:
        try:
            status, kind, text = HTTPStatus.OK, *make(self._name())
        except _RefusedPage as refusal:
            status, why = refusal.args
            kind, text = _JSON, orjson.dumps({"error": why}).decode()
        content = text.encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": _POLICY.format(**sources()),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        with suppress(ConnectionError):  # the tab was closed
            self.end_headers()
            self.wfile.write(content)

    def _name(self) -> str:
        """Return the rest of the path, after the secret.

        Raises:
            _RefusedPage: The request is for another host, or does not know the secret.
        """
        host, place = self.headers.get("Host", ""), self.server.place
        if host != self.server.host:
            raise _RefusedPage(
                HTTPStatus.FORBIDDEN, f"Host: expected {self.server.host}, got {shown(host)}"
            )
        if not hmac.compare_digest(self.path[: len(place)].encode(), place.encode()):
            raise _RefusedPage(
                HTTPStatus.NOT_FOUND, "expected the address that sglang-lp try printed"
            )
        return self.path[len(place) :]

    def _get(self, name: str) -> tuple[str, str]:
        if name == "offer":
            return _JSON, orjson.dumps(self.server.target.offer()).decode()
        if name not in self.server.files:
            raise _RefusedPage(HTTPStatus.NOT_FOUND, f"there is no {shown(name)}")
        return self.server.files[name]

    def _post(self, name: str) -> tuple[str, str]:
        origin, kind = self.headers.get("Origin", ""), self.headers.get("Content-Type", "")
        if origin != f"http://{self.server.host}":
            raise _RefusedPage(
                HTTPStatus.FORBIDDEN, f"Origin: expected this page, got {shown(origin)}"
            )
        if kind != _JSON:
            raise _RefusedPage(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"Content-Type: expected {_JSON}, got {shown(kind)}",
            )
        if name != "ask":
            raise _RefusedPage(HTTPStatus.NOT_FOUND, f"there is no {shown(name)}")
        try:
            wish = msgspec.json.decode(self._body(), type=Wish)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _RefusedPage(HTTPStatus.BAD_REQUEST, f"the form: {error}") from None
        return _JSON, orjson.dumps(self.server.target.ask(wish)).decode()

    def _body(self) -> bytes:
        given = self.headers.get("Content-Length", "")
        # Python reads no number of thousands of digits.
        is_number = given.isascii() and given.isdecimal() and len(given) <= _MAX_DIGITS
        if not (is_number and int(given) <= _MAX_BYTES):
            raise _RefusedPage(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"Content-Length: expected at most {_MAX_BYTES} bytes, got {shown(given)}",
            )
        return self.rfile.read(int(given))

    def log_message(self, *_args: Any) -> None:
        """Leave the terminal to the address."""


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
