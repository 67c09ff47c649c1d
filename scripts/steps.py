"""Steps of the Makefile's targets: one command each, run with nothing left behind.

A set-up step that succeeded leaves a mark with the digest of everything it depends on, and runs
again when that has changed. A set-up step that did not finish leaves the note ``unfinished``, and
no mark next to that note counts: a half-finished environment is made anew, never trusted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.supervise import run

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ROOT", "VENV", "SetUp", "Step", "do", "say"]

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(".venv")

#: Only set-up may use the network, and loopback takes no proxy.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "no_proxy": "127.0.0.1,localhost",
}


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        title: Short description, printed when the step starts and ends.
        command: Program and arguments.
        online: Whether it may use the network.
        needed: Whether the target fails if this step fails.
    """

    title: str
    command: tuple[str, ...]
    online: bool = False
    needed: bool = True


@dataclass(frozen=True)
class SetUp(Step):
    """A command that runs again only when one of its inputs has changed.

    Attributes:
        mark: File with the digest of the inputs of the last success.
        product: A path that the command makes; without it the mark does not count.
        inputs: Files that decide what the command makes.
    """

    mark: Path = Path()
    product: Path = Path()
    inputs: tuple[Path, ...] = ()

    def digest(self) -> str:
        """Return the content of a valid mark."""
        # The program's name does not count: one Python has several names.
        depends = (str(ROOT), sys.version_info[:2], self.command[1:])
        digest = hashlib.sha256(repr(depends).encode())
        for path in self.inputs:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    @property
    def unfinished(self) -> Path:
        """The note that a step with its mark in the same folder has started and not finished."""
        return self.mark.with_name("unfinished")

    def is_done(self) -> bool:
        """Tell whether the command need not run."""
        return (
            not self.unfinished.exists()
            and self.product.exists()
            and self.mark.exists()
            and self.mark.read_text() == self.digest()
        )


def do(step: Step, label: str) -> int:
    """Run a step unless it is a set-up that is done; return its exit code."""
    if not isinstance(step, SetUp):
        return _run(step, label)
    with _alone():
        if step.is_done():
            say(f"{label}: done before")
            return 0
        step.mark.parent.mkdir(parents=True, exist_ok=True)
        step.unfinished.touch()
        code = _run(step, label)
        if code == 0:
            # Making the environment emptied it, this directory included.
            step.mark.parent.mkdir(exist_ok=True)
            step.mark.write_text(step.digest())
            step.unfinished.unlink(missing_ok=True)
        return code


def _run(step: Step, label: str) -> int:
    say(f"{label} ...")
    started = time.monotonic()
    env = os.environ | {"PATH": f"{ROOT / VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    code = run(step.command, env if step.online else env | OFFLINE)
    say(f"{label}: {'done' if code == 0 else 'failed'} in {time.monotonic() - started:.1f} s")
    return code


@contextmanager
def _alone() -> Iterator[None]:
    """Keep two set-ups of one checkout from working on the same environment."""
    lock = Path(".cache/set-up.lock")
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another make that is setting up this checkout ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)
