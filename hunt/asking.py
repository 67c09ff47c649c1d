"""Sends the requests of a case at once, each as a client would, next to a canary."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import httpx
import orjson

from hunt.answers import Reply
from hunt.cases import TOGETHER
from hunt.sent import GENERATE, Sent
from support.plugins import steps
from support.servers.server import lines_of

if TYPE_CHECKING:
    from types import TracebackType

    from support.servers.server import Server

__all__ = ["Asked", "Client"]

#: No answer of a hunt takes so long, on a busy machine either.
_SECONDS = 40.0
#: By content type, how a line with an event begins.
_STREAMS = {"text/event-stream": b"data: ", "application/x-ndjson": b""}
#: Between two looks at the event loop.
_TICK = 0.1
_JSON = {"content-type": "application/json"}
_FAULTS = "sglang_lp_faults_total{"
#: Seconds that a server has to answer again, or to end, once a client got no answer.
_DYING = 8.0


@dataclass(frozen=True)
class Asked:
    """A case as it went.

    Attributes:
        sent: Its requests.
        replies: To each of them.
        canary: Number of the canary that was asked next to them, and its answer.
        alone: The answer of this canary without other requests.
        gap: Longest time in seconds that the event loop did not answer.
        step: Longest processor time of a step of the scheduler, in seconds.
        faults: By how much the metric of faults grew.
        is_alive: Whether the server still answers.
        cause: Why it ended, by its log.
    """

    sent: Sequence[Sent]
    replies: Sequence[Reply]
    canary: tuple[int, Reply]
    alone: Reply
    gap: float = 0.0
    step: float = 0.0
    faults: float = 0.0
    is_alive: bool = True
    cause: str = ""


@dataclass
class Client:
    """Asks one server, until it is closed.

    Args:
        server: Which one; it has the probe of the steps.
        canaries: Bodies for ``/generate``; each is asked alone before its first case.
    """

    server: Server
    canaries: Sequence[Mapping[str, Any]]
    _http: httpx.Client = field(init=False)
    _pool: ThreadPoolExecutor = field(init=False)
    _alone: dict[int, Reply] = field(default_factory=dict)
    _faults: float = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=TOGETHER + 4, keepalive_expiry=1)
        self._http = httpx.Client(
            base_url=self.server.url, timeout=_SECONDS, trust_env=False, limits=limits
        )
        self._pool = ThreadPoolExecutor(TOGETHER + 2)
        self._faults = self._count_faults()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown()
        self._http.close()

    def _lives(self, replies: Sequence[Reply], canary: int) -> bool:
        """Tell whether the server still answers, which takes time if a reply is no answer."""
        ends = time.monotonic() + _DYING
        is_sure = all(0 < reply.status < 500 for reply in replies)
        while not is_sure and time.monotonic() < ends:
            if self.server.process.poll() is not None:
                return False
            time.sleep(0.5)  # a process that ends still answers for some time
            is_sure = self._send(Sent(GENERATE, self.canaries[canary]), _DYING).status == 200
        return is_sure and self.server.process.poll() is None

    def ask(self, sent: Sequence[Sent], canary: int) -> Asked:
        """Send the requests of a case at once, and a canary next to them.

        Args:
            sent: The requests.
            canary: Which of the canaries.
        """
        canary %= len(self.canaries)
        if canary not in self._alone:
            self._alone[canary] = self._send(Sent(GENERATE, self.canaries[canary]))
        begin = steps.file_of(self.server.record).stat().st_size
        with self._ticking() as gaps:
            asked = [*sent, Sent(GENERATE, self.canaries[canary])]
            *replies, own = self._pool.map(self._send, asked)
        took = steps.read(self.server.record, begin).cpu
        faults, self._faults = self._faults, self._count_faults()
        return Asked(
            sent,
            replies,
            (canary, own),
            self._alone[canary],
            max(gaps),
            max(took, default=0.0),
            self._faults - faults,
            self._lives([*replies, own], canary),
        )

    def _send(self, sent: Sent, seconds: float = _SECONDS) -> Reply:
        time.sleep(sent.wait)
        begin = time.monotonic()
        try:
            return self._read(sent, begin, seconds)
        except httpx.HTTPError as error:
            seconds = time.monotonic() - begin
            return Reply(0, seconds=seconds, failure=f"no answer: {type(error).__name__}: {error}")

    def _read(self, sent: Sent, begin: float, seconds: float) -> Reply:
        is_cut = False
        events: list[Any] = []
        with self._http.stream(
            "POST", sent.path, content=sent.text, headers=_JSON, timeout=seconds
        ) as reply:
            kind = reply.headers.get("content-type", "").partition(";")[0]
            if kind in _STREAMS:
                for line in lines_of(reply):
                    if line.startswith(_STREAMS[kind]) and line != b"data: [DONE]":
                        events.append(orjson.loads(line.removeprefix(_STREAMS[kind])))
                    if len(events) == sent.leave_after:
                        is_cut = True
                        break
            else:
                text = reply.read()
                try:
                    events = [orjson.loads(text)]
                except orjson.JSONDecodeError:
                    events = [text.decode(errors="replace")]
            headers = {name.lower(): value for name, value in reply.headers.items()}
            took = time.monotonic() - begin
            return Reply(reply.status_code, headers, events, took, is_cut)

    @contextmanager
    def _ticking(self) -> Iterator[list[float]]:
        """Ask for next to nothing meanwhile; yields how long each of these answers took."""
        gaps, is_over = [0.0], threading.Event()

        def tick() -> None:
            while not is_over.wait(_TICK):
                begin = time.monotonic()
                try:
                    self._http.get("/v1/models")
                except httpx.HTTPError:
                    return
                gaps.append(time.monotonic() - begin)

        ticker = threading.Thread(target=tick)
        ticker.start()
        try:
            yield gaps
        finally:
            is_over.set()
            ticker.join()

    def _count_faults(self) -> float:
        try:
            text = self._http.get("/metrics").text
        except httpx.HTTPError:
            return 0.0
        return sum(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(_FAULTS)
        )
