"""A real SGLang server: started as an operator would, asked over loopback, ended for certain."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from support.processes import EngineError, Process, free_port, running, tail
from support.settings import CPU_ARGUMENTS, RECORD, environment

#: How SGLang itself starts a server.
SGLANG = (sys.executable, "-m", "sglang.launch_server")
#: What a start may take on a busy machine of two cores.
START_SECONDS = 420


def lines_of(response: httpx.Response) -> Iterator[bytes]:
    """Yield the lines of a stream; httpx ends one also at U+0085, which is a token's text."""
    rest = b""
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
    if rest:
        yield rest


@dataclass
class Reply:
    """The answer to one request.

    Attributes:
        status: HTTP status.
        body: The JSON answer, or the last event of a stream.
        events: The events of a stream, in order.
    """

    status: int
    body: Any
    events: list[Any] = field(default_factory=list)

    @property
    def output_ids(self) -> list[int]:
        """The generated tokens."""
        ids: list[int] = self.body["output_ids"]
        return ids

    @property
    def finish_reason(self) -> dict[str, Any]:
        """Why generation ended, in the form of ``/generate``."""
        reason: dict[str, Any] = self.body["meta_info"]["finish_reason"]
        return reason


@dataclass
class Server:
    """A running server.

    Attributes:
        url: Where it listens.
        log: Its standard output and error.
        record: File of :mod:`support.processors.recording` and :mod:`support.plugins.probe`.
        process: Leader of its process group.
        arguments: SGLang's arguments.
        variables: Environment variables that were set for it.
    """

    url: str
    log: Path
    record: Path
    process: Process
    arguments: Mapping[str, Any]
    variables: Mapping[str, str]

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Send one request; the answer may be a refusal."""
        response = httpx.post(self.url + path, json=body, timeout=120, trust_env=False)
        try:
            return Reply(response.status_code, orjson.loads(response.content))
        except orjson.JSONDecodeError:
            return Reply(response.status_code, response.text)

    def stream(
        self, path: str, body: Mapping[str, Any], *, leave_after: int | None = None
    ) -> Reply:
        """Send a streaming request and collect its events.

        Args:
            path: Path of the endpoint.
            body: Without ``stream``.
            leave_after: Number of events after which the client hangs up.
        """
        events: list[Any] = []
        with httpx.stream(
            "POST", self.url + path, json={**body, "stream": True}, timeout=120, trust_env=False
        ) as response:
            if response.headers["content-type"].startswith("application/json"):
                return Reply(response.status_code, orjson.loads(response.read()))
            for line in lines_of(response):
                if line.startswith(b"data: ") and line != b"data: [DONE]":
                    events.append(orjson.loads(line[6:]))
                    if len(events) == leave_after:
                        break
        return Reply(response.status_code, events[-1] if events else None, events)

    def at_once(self, requests: Sequence[Mapping[str, Any]], stagger: float = 0.0) -> list[Reply]:
        """``POST /generate`` all bodies concurrently, ``stagger`` seconds apart."""

        def send(index: int) -> Reply:
            time.sleep(index * stagger)
            return self.post("/generate", requests[index])

        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(send, range(len(requests))))

    def recorded(self) -> int:
        """Return the size of the record so far, in bytes."""
        return self.record.stat().st_size if self.record.exists() else 0

    def records(self, event: str, *, since: int = 0, **wanted: Any) -> list[dict[str, Any]]:
        """Return the records of one kind with these values.

        Args:
            event: Kind of the record.
            since: Size of the record at which to begin. The record of a server that many tests
                share takes a second to read from its start.
            **wanted: Values by name.
        """
        if not self.record.exists():
            return []
        with self.record.open("rb") as file:
            file.seek(since)
            lines = map(orjson.loads, file.read().splitlines())
        return [
            line
            for line in lines
            if line["event"] == event and all(line[key] == wanted[key] for key in wanted)
        ]

    def is_healthy(self) -> bool:
        """Tell whether the server still serves."""
        return self.process.poll() is None and (
            httpx.get(self.url + "/health", timeout=60, trust_env=False).status_code
            == httpx.codes.OK
        )

    def log_text(self) -> str:
        """Return the server's log so far."""
        return self.log.read_text(errors="replace")


@contextmanager
def launch(  # noqa: PLR0913 - most have a default
    model: Path,
    directory: Path,
    arguments: Mapping[str, Any] | None = None,
    *,
    command: Sequence[str | Path] = SGLANG,
    paths: Sequence[Path] = (),
    variables: Mapping[str, str] | None = None,
    forked: bool = False,
) -> Iterator[Server]:
    """Run a server for the length of a ``with`` block.

    Args:
        model: Directory of a checkpoint.
        directory: Takes the log and the record.
        arguments: SGLang's, over ``CPU_ARGUMENTS``: ``True`` for a flag, ``None`` to leave out.
        command: What to run with these arguments.
        paths: Directories that the server imports from, before this checkout.
        variables: Environment variables.
        forked: As for :func:`~support.processes.running`.

    Yields:
        The server, once it is healthy.

    Raises:
        EngineError: It ended, or was not ready in time.
    """
    variables = variables or {}
    arguments = {
        **CPU_ARGUMENTS,
        "model_path": model,
        "host": "127.0.0.1",
        "port": free_port(),
        **(arguments or {}),
    }
    log, record = directory / "server.log", directory / "record.jsonl"
    # The models are tiny, and the machine has other work.
    env = environment({"OMP_NUM_THREADS": "1", RECORD: str(record), **variables}, paths)
    with running([*command, *flags_of(arguments)], env, log, forked=forked) as process:
        url = f"http://127.0.0.1:{arguments['port']}"
        server = Server(url, log, record, process, arguments, variables)
        _await_health(server)
        yield server


def _await_health(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise EngineError(f"the server ended at its start:\n{tail(server.log)}")
        try:
            if httpx.get(server.url + "/health", timeout=5, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise EngineError(f"the server was not ready in {START_SECONDS} s:\n{tail(server.log)}")


def flags_of(arguments: Mapping[str, Any]) -> list[str]:
    """Return arguments as SGLang's command line takes them."""
    flags: list[str] = []
    for name, value in arguments.items():
        if value is not None and value is not False:
            flags.append("--" + name.replace("_", "-"))
            flags += [] if value is True else [str(value)]
    return flags
