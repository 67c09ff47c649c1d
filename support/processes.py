"""Processes that are ended with everything they started, whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from support.preloaded import Forked, template

Process = subprocess.Popen[bytes] | Forked


class EngineError(RuntimeError):
    """A server or engine did not start, or ended; holds the end of its log."""


@contextmanager
def running(
    command: Sequence[str | Path], env: Mapping[str, str], log: Path, *, forked: bool = False
) -> Iterator[Process]:
    """Run a command as a process group of its own, and kill the group at the end of the block.

    Args:
        command: Program and arguments.
        env: Its whole environment.
        log: Takes its standard output and error.
        forked: Whether to fork a process that has imported SGLang; the command is
            ``python -m MODULE`` with arguments.
    """
    process: Process
    if forked:
        _, _, module, *arguments = map(str, command)
        process = template(env).start(module, arguments, env, log)
    else:
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def play(  # noqa: PLR0913 - one has a default
    module: str,
    job: Mapping[str, Any],
    directory: Path,
    env: Mapping[str, str],
    seconds: float,
    *,
    forked: bool = False,
) -> Any:
    """Run ``python -m module JOB ANSWER`` and return the answer that it writes.

    Args:
        module: Reads the JSON file ``JOB`` and writes the JSON file ``ANSWER``.
        job: What the first file holds.
        directory: Takes both files and the log.
        env: The whole environment.
        seconds: Time that the process has.
        forked: As for :func:`running`.

    Raises:
        EngineError: It wrote no answer in time; the message holds the end of the log.
    """
    asked, answer, log = (directory / name for name in ("job.json", "answer.json", "engine.log"))
    asked.write_bytes(orjson.dumps(job))
    command = [sys.executable, "-m", module, str(asked), str(answer)]
    with running(command, env, log, forked=forked) as process, suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    if not answer.exists():
        raise EngineError(f"{module} wrote no answer:\n{tail(log)}")
    return orjson.loads(answer.read_bytes())


def tail(log: Path) -> str:
    """Return the end of a log."""
    return "\n".join(line[:300] for line in log.read_text(errors="replace").splitlines()[-40:])


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
