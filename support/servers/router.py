"""sglang-router before real servers: started as an operator would, ended for certain."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.processes import EngineError, free_port, running, tail
from support.settings import environment

#: What a start may take on a busy machine of two cores.
START_SECONDS = 60


@dataclass
class Router:
    """A running router.

    Attributes:
        url: Where it listens.
        log: Its standard output and error.
    """

    url: str
    log: Path

    def workers(self) -> dict[str, Any]:
        """Return the router's record of each worker, by URL."""
        found = httpx.get(self.url + "/workers", timeout=10, trust_env=False).json()["workers"]
        return {worker["url"]: worker for worker in found}

    def add(self, url: str) -> None:
        """Add a worker, and wait until it is served to."""
        others = self.workers()
        answer = httpx.post(self.url + "/workers", json={"url": url}, timeout=10, trust_env=False)
        answer.raise_for_status()
        self.await_workers(*others, url)

    def await_workers(self, *urls: str) -> None:
        """Wait until it has exactly these workers and calls them healthy.

        Raises:
            EngineError: It has not in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                found = self.workers()
            except httpx.TransportError:
                found = {}
            if found.keys() == {*urls} and all(one["is_healthy"] for one in found.values()):
                return
            time.sleep(0.1)
        raise EngineError(f"the router did not get its workers:\n{tail(self.log)}")


@contextmanager
def route(workers: Sequence[str], policy: str, directory: Path) -> Iterator[Router]:
    """Run a router for the length of a ``with`` block.

    Args:
        workers: URLs of servers.
        policy: How it chooses among them, such as ``round_robin``.
        directory: Takes the log.

    Yields:
        The router, once it knows its workers.
    """
    port, metrics_port = free_port(), free_port()
    command = [
        *(sys.executable, "-m", "sglang_router.launch_router"),
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1"),
        *("--prometheus-port", str(metrics_port), "--worker-startup-check-interval", "1"),
        # It counts refusals: ten of them would take every worker out.
        "--disable-circuit-breaker",
        # On a busy machine a worker that is well takes long to say so.
        *("--health-check-interval-secs", "2", "--health-check-timeout-secs", "60"),
        *("--policy", policy, "--worker-urls", *workers),
    ]
    log = directory / f"router-{port}.log"
    with running(command, environment({}), log):
        router = Router(f"http://127.0.0.1:{port}", log)
        router.await_workers(*workers)
        yield router
