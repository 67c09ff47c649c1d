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
from hunt.requests import GENERATE, TOGETHER, Sent
from support.plugins import steps

if TYPE_CHECKING:
    from types import TracebackType

    from support.servers.server import Server

__all__ = ["Asked", "Client"]

#: No answer of a hunt takes so long, on a busy machine either.
_SECONDS = 90.0
#: Between two looks at the event loop.
_TICK = 0.1
_FAULTS = "sglang_lp_faults_total{"


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
    """

    sent: Sequence[Sent]
    replies: Sequence[Reply]
    canary: tuple[int, Reply]
    alone: Reply
    gap: float = 0.0
    step: float = 0.0
    faults: float = 0.0
    is_alive: bool = True


@dataclass
class Client:
    """Asks one server, until it is closed.

    Args:
        server: Which one; it has the probe of the steps.
        canaries: Bodies for ``/generate``; each is asked once before all cases.
    """

    server: Server
    canaries: Sequence[Mapping[str, Any]]
    _http: httpx.Client = field(init=False)
    _pool: ThreadPoolExecutor = field(init=False)
    _alone: list[Reply] = field(init=False)
    _faults: float = field(init=False)

    def __post_init__(self) -> None:
        limits = httpx.Limits(max_connections=TOGETHER + 4, keepalive_expiry=1)
        self._http = httpx.Client(
            base_url=self.server.url, timeout=_SECONDS, trust_env=False, limits=limits
        )
        self._pool = ThreadPoolExecutor(TOGETHER + 2)
        self._alone = [self._send(Sent(GENERATE, body)) for body in self.canaries]
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

    @property
    def is_alive(self) -> bool:
        """Whether the server has not ended."""
        return self.server.process.poll() is None

    def ask(self, sent: Sequence[Sent], canary: int) -> Asked:
        """Send the requests of a case at once, and a canary next to them.

        Args:
            sent: The requests.
            canary: Which of the canaries.
        """
        canary %= len(self.canaries)
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
            self.is_alive,
        )

    def _send(self, sent: Sent) -> Reply:
        begin = time.monotonic()
        try:
            return self._read(sent, begin)
        except httpx.HTTPError as error:
            seconds = time.monotonic() - begin
            return Reply(0, seconds=seconds, failure=f"no answer: {type(error).__name__}: {error}")

    def _read(self, sent: Sent, begin: float) -> Reply:
        is_cut = False
        events: list[Any] = []
        with self._http.stream("POST", sent.path, json=dict(sent.body)) as reply:
            if reply.headers.get("content-type", "").startswith("text/event-stream"):
                for line in reply.iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        events.append(orjson.loads(line[6:]))
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
            seconds = time.monotonic() - begin
            return Reply(reply.status_code, headers, events, seconds, is_cut)

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
