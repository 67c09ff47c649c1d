"""A small HTTP server on loopback that a test plays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from email.message import Message


class Asked(NamedTuple):
    """A request; ``body`` is parsed JSON, or ``None``."""

    method: str
    path: str
    headers: Message
    body: Any


class Answered(NamedTuple):
    """An answer; ``body`` is JSON unless it is bytes."""

    status: int
    body: Any = b""
    headers: Mapping[str, str] = {}


@contextmanager
def listening(answer: Callable[[Asked], Answered]) -> Iterator[str]:
    """Answer requests in the block; yields the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = orjson.loads(self.rfile.read(length)) if length else None
            answered = answer(Asked(self.command, self.path, self.headers, body))
            content = answered.body
            content = content if isinstance(content, bytes) else orjson.dumps(content)
            self.send_response(answered.status)
            for name, value in answered.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_DELETE = do_POST  # noqa: N815 - http.server's names

        def log_message(self, *_args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
