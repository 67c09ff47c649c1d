"""A prefill and a decode server on a machine without a GPU, asked as a load balancer does.

Mooncake is not in the environment of the other tests: ``make test SUITE=fleet`` installs its
wheel in a folder of its own, :data:`PACKAGES`. Its libraries come with Debian's libibverbs1.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from support.plugins import FLEET
from support.processes import free_port
from support.servers.server import Reply, Server, launch
from support.settings import ROOT

__all__ = ["PACKAGES", "Pair", "install", "missing", "pair"]

#: Where ``make test SUITE=fleet`` installs Mooncake.
PACKAGES = ROOT / ".cache" / "fleet"
#: Libraries that Debian has in its packages libibverbs1, libnl-3-200 and libnl-route-3-200.
_LIBRARIES = ("libnl-3.so.200", "libnl-route-3.so.200", "libibverbs.so.1")
#: Nothing but loopback. Seconds are those after which SGLang gives up waiting.
_SECONDS = "60"
_VARIABLES = {
    "SGLANG_HOST_IP": "127.0.0.1",
    "MC_FORCE_TCP": "1",
    "MC_TCP_BIND_ADDRESS": "127.0.0.1",
    # Sends the pages of a cached prefix as a CUDA event allows.
    "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": _SECONDS,
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": _SECONDS,
}
_TRANSFER = {"disaggregation_transfer_backend": "mooncake_tcp"}
_PREFILL = {**_TRANSFER, "disaggregation_mode": "prefill"}
_DECODE = {
    **_TRANSFER,
    "disaggregation_mode": "decode",
    "disaggregation_decode_retraction_backup": "cpu_tensor",
}


def missing() -> str | None:
    """Return the reason why this machine cannot run such a pair, or ``None``."""
    if not (PACKAGES / "mooncake").exists():
        return "needs Mooncake in .cache/fleet: make test SUITE=fleet installs it"
    for name in _LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            return f"needs {name}: apt-get install libibverbs1"
    return None


def install() -> None:
    """Let Mooncake send without a GPU; SGLang calls this in each of its processes.

    Everything else stays SGLang's own: Mooncake's sender takes the indices of pages as pinned
    memory with a CUDA event, and so is asked for an array here, as other backends' senders are.
    """
    from sglang.srt.disaggregation.mooncake import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False


class Answers(NamedTuple):
    """Answers of both servers to one request; the client gets the decode server's."""

    prefill: Reply
    decode: Reply


class Pair:
    """Both servers.

    Attributes:
        prefill: Samples first tokens.
        decode: Samples the others.
    """

    def __init__(self, prefill: Server, decode: Server, port: int) -> None:
        self.prefill = prefill
        self.decode = decode
        self._port = port

    def _room(self) -> dict[str, Any]:
        """Return the fields that a load balancer adds to a request, the same for both servers."""
        return {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self._port,
            "bootstrap_room": random.randrange(1 << 62),  # noqa: S311 - no secret
        }

    def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        stream: bool = False,
        to_prefill: Mapping[str, Any] | None = None,
    ) -> Answers:
        """Send one request to both servers.

        Args:
            path: Path of the endpoint.
            body: Body of the request.
            stream: Whether the client wants a stream.
            to_prefill: What the prefill server gets instead.
        """
        room = self._room()
        with ThreadPoolExecutor(2) as pool:
            sent = {**(body if to_prefill is None else to_prefill), **room}
            prefill = pool.submit(self.prefill.post, path, sent)
            ask = self.decode.stream if stream else self.decode.post
            decode = pool.submit(ask, path, {**body, **room})
            return Answers(prefill.result(), decode.result())

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Send one request and return what the client gets."""
        return self.ask(path, body).decode

    def stream(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Send a streaming request and return what the client gets."""
        return self.ask(path, body, stream=True).decode

    def at_once(self, requests: Sequence[Mapping[str, Any]]) -> list[Reply]:
        """``POST /generate`` all bodies concurrently."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return [*pool.map(lambda body: self.post("/generate", body), requests)]


@contextmanager
def pair(
    model: Path,
    directory: Path,
    prefill: tuple[Mapping[str, Any], Mapping[str, str]] = ({}, {}),
    decode: tuple[Mapping[str, Any], Mapping[str, str]] = ({}, {}),
    paths: Sequence[Path] = (),
) -> Iterator[Pair]:
    """Run both servers for the length of a ``with`` block.

    Args:
        model: Directory of a checkpoint.
        directory: Takes the logs and the records.
        prefill: Further arguments and variables of the prefill server.
        decode: The same of the decode server.
        paths: Directories that both import from.
    """
    port = free_port()
    libraries = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
    started: dict[str, Server] = {}
    with ExitStack() as stack:
        lock = threading.Lock()

        def start(role: str) -> None:
            own = {"prefill": _PREFILL, "decode": _DECODE}[role]
            arguments, variables = {"prefill": prefill, "decode": decode}[role]
            (directory / role).mkdir()
            server = launch(
                model,
                directory / role,
                {**own, "disaggregation_bootstrap_port": port, **arguments},
                paths=[PACKAGES, FLEET, *paths],
                variables={**_VARIABLES, **libraries, **variables},
                forked=True,
            )
            running = server.__enter__()
            with lock:
                stack.push(server.__exit__)
                started[role] = running

        with ThreadPoolExecutor(2) as pool:
            [*pool.map(start, ("prefill", "decode"))]
        yield Pair(started["prefill"], started["decode"], port)
