"""Run a command so that nothing it started outlives it: not on success, failure or a signal.

An engine starts processes that start processes, and a test runner that is killed tears nothing
down. So this process adopts every orphan below it (Linux calls that a subreaper) and ends
whatever is left when the command itself has ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

#: Seconds for a command to clean up after a signal.
GRACE = 20.0

#: Seconds between SIGTERM and SIGKILL for processes that a command left behind.
SWEEP_GRACE = 5.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_CHILD_SUBREAPER = 36


class Stopped(BaseException):
    """A signal asked this process to stop. Not an ``Exception``: nothing may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def adopt_orphans() -> None:
    """Prepare this process for :func:`run`: signals raise ``Stopped``, orphans become children."""
    if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed: Linux 3.4 or later is needed")
    for number in _SIGNALS:
        signal.signal(number, _stop)
    # A failing part of SGLang sends its parent this signal, and this process is the parent of
    # orphans. A handler, because the command would inherit an ignored signal.
    signal.signal(signal.SIGQUIT, lambda _number, _frame: None)


def run(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command to its end.

    It gets no terminal input, and a process group of its own, so that a Ctrl-C reaches it once
    and through here.

    Args:
        command: Program and arguments.
        env: Its whole environment.

    Returns:
        Its exit code; minus the signal's number if a signal ended it.

    Raises:
        Stopped: A signal came. The command got it too, and has ended.
    """
    with _swept():
        child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, process_group=0)
        try:
            return child.wait()
        except Stopped as stop:
            child.send_signal(stop.number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
            raise


def _stop(number: int, _frame: FrameType | None) -> None:
    raise Stopped(number)


@contextmanager
def _swept() -> Iterator[None]:
    try:
        yield
    finally:
        # An impatient second Ctrl-C must not cut the sweep short.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        _end_children()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _end_children() -> None:
    asked: set[int] = set()
    deadline = time.monotonic() + SWEEP_GRACE
    while children := _children():
        late = time.monotonic() > deadline
        for pid in children:
            if late:
                os.kill(pid, signal.SIGKILL)
            elif pid not in asked:
                os.kill(pid, signal.SIGTERM)
                asked.add(pid)
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _children() -> list[int]:
    """Return the process ids of all children, the dead but not yet reaped among them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.append(int(stat.parent.name))
    return found
