"""A guarded SGLang server on this machine, started as an operator would and stopped for certain."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["CPU_ARGUMENTS", "ServerFailed", "serve"]

#: What SGLang 0.5.23 needs to run a GPT-2 on a machine without a GPU. Its scheduler runs with its
#: defaults, so overlap scheduling is on.
CPU_ARGUMENTS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "mem_fraction_static": 0.1,
    "max_total_tokens": 16384,
    "skip_server_warmup": True,
}

_START_SECONDS = 300


class ServerFailed(RuntimeError):
    """The server ended, or did not answer in time."""


@contextmanager
def serve(model: Path) -> Iterator[str]:
    """Run `sglang-lp serve` with its default policy on a free port of the loopback interface.

    Args:
        model: Directory of the checkpoint.

    Yields:
        The server's base URL, once it answers.

    Raises:
        ServerFailed: It did not start; the message holds the end of its log.

    """
    port = _free_port()
    arguments = [f"--model-path={model}", "--host=127.0.0.1", f"--port={port}"]
    for name, value in CPU_ARGUMENTS.items():
        flag = "--" + name.replace("_", "-")
        arguments.append(flag if value is True else f"{flag}={value}")
    command = [sys.executable, "-m", "sglang_lp.cli", "serve", "--", *arguments]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log)
            yield url
        finally:
            _stop(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: IO[str]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/health", timeout=2).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    log.seek(0)
    raise ServerFailed(f"the server did not start; its log ends so:\n{log.read()[-4000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and every process that it started: they share its process group."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            break
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
