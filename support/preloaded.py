"""A process that has imported SGLang, forked wherever a start would import it again.

A server has three processes, and each spends some ten seconds of a core on imports. A process of
:class:`Template` pays them once: it forks the server's first process, and a copy of it forks the
processes that the server spawns. Plugins, the toolkit and the command line are read after the fork,
as in a start of its own. Differences to such a start:

- SGLang's modules are imported before plugins are loaded, in the first process too.
- Modules that refer to a hooked function are found by :mod:`support.hooking`.
- The processes have one hash seed, where the ranks of a real server have one each.

Run as a program, this module is the template; its argument is a socket.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import multiprocessing.spawn
import multiprocessing.util
import os
import random
import re
import runpy
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import Any

import orjson

from support.hooking import search_once
from support.settings import environment

__all__ = ["Forked", "Template", "template"]

_MODULES = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
)
#: Variables that modules read when they are imported.
_READ_EARLY = ("OMP_NUM_THREADS", "TRITON_INTERPRET", "TORCH_COMPILE_DISABLE")
#: The work of a forked process.
Work = Callable[[], object]
_BYTES = 1 << 18
_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
#: Received descriptors are kept from here on until they get the numbers of their sender.
_ABOVE = 500
_SPAWN = re.compile(r"spawn_main\((.*)\)")


class Forked:
    """A forked process, used as :class:`subprocess.Popen` is.

    Attributes:
        pid: Its id, and that of its process group.
        returncode: As for ``Popen``; ``None`` until :meth:`poll` or :meth:`wait` saw the end.
    """

    def __init__(self, pid: int, template: Template) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._template, self._ended = template, os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code, ``None`` while the process runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once the process has ended.

        Raises:
            subprocess.TimeoutExpired: It did not end in ``timeout`` seconds.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = self._template.reap(self.pid)
            os.close(self._ended)
        return self.returncode


class Template:
    """A process that imports SGLang and is forked, until it is closed or its parent ends.

    Args:
        env: Its whole environment; what modules read at their import is read from it.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            # SGLang warns of every device that is not there.
            self._log = TemporaryFile()  # noqa: SIM115 - as long as the template
            self._process = subprocess.Popen(
                command, env=env, stdout=self._log, stderr=self._log, pass_fds=[theirs.fileno()]
            )
        self._lock = Lock()

    def start(
        self, module: str, arguments: Sequence[str], env: Mapping[str, str], log: Path
    ) -> Forked:
        """Run ``python -m MODULE ARGUMENTS`` as a process group of its own.

        Args:
            module: Its name.
            arguments: Of the command line.
            env: Its whole environment.
            log: Takes its standard output and error.
        """
        job = {"module": module, "arguments": arguments, "env": dict(env), "cwd": str(Path.cwd())}
        with log.open("wb") as out:
            return Forked(self._ask(job, out.fileno()), self)

    def reap(self, pid: int) -> int:
        """Return the exit code of a forked process that has ended."""
        return self._ask({"reap": pid})

    def close(self) -> None:
        """End the template; processes that it forked go on."""
        self._socket.close()
        self._process.wait()
        self._log.close()

    def _ask(self, job: Mapping[str, Any], *descriptors: int) -> int:
        with self._lock:
            socket.send_fds(self._socket, [orjson.dumps(job)], descriptors)
            answer = self._socket.recv(_BYTES)
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"the template ended:\n{self._log.read().decode()[-4000:]}")
        return int(answer)


def template(env: Mapping[str, str]) -> Template:
    """Return this process's template for processes with an environment."""
    return _template(tuple((name, env[name]) for name in _READ_EARLY if name in env))


@cache
def _template(variables: tuple[tuple[str, str], ...]) -> Template:
    made = Template(environment(dict(variables)))
    atexit.register(made.close)
    return made


def main(descriptor: int) -> None:
    """Import SGLang, serve a :class:`Template`, and do in forked processes what they are for."""
    for module in _MODULES:
        importlib.import_module(module)
    search_once()
    gc.freeze()  # or each copy's collector went through all of this, and copied its pages
    work = _serve_template(socket.socket(fileno=descriptor))
    if work is not None:
        work()


def _serve_template(asked: socket.socket) -> Work | None:
    """Fork first processes until the other end is closed.

    Returns:
        In a forked process what it is for; ``None`` at the end of the template.
    """
    while True:
        job, descriptors = _received(asked)
        if job is None:
            return None
        if "reap" in job:
            answer = os.waitstatus_to_exitcode(os.waitpid(job["reap"], 0)[1])
        else:
            answer = os.fork()
            if not answer:
                asked.close()
                return _first(job, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        asked.send(str(answer).encode())


def _first(job: dict[str, Any], out: int) -> Work:
    """Make this process a server's first process, or a process that it spawns; return its work."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(descriptor, place)
    os.close(nothing)
    os.close(out)
    own = {*os.environ.get("PYTHONPATH", "").split(os.pathsep), str(Path.cwd())}
    paths = job["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [job["cwd"], *paths, *(path for path in sys.path if path not in own)]
    sys.argv[:] = [job["module"], *job["arguments"]]
    _settle(job)
    return _forking_spawned() or partial(
        runpy.run_module, job["module"], run_name="__main__", alter_sys=True
    )


def _settle(job: Mapping[str, Any]) -> None:
    """Take over the environment of a job, and random numbers of its own."""
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["cwd"])
    random.seed()


def _forking_spawned() -> Work | None:
    """Let a copy of this process, in its present state, fork the processes that it would spawn.

    The copy forks twice: an orphan becomes the child of this process, which waits for it.

    Returns:
        In a spawned process its work; ``None`` in this process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        return _serve_spawns(theirs)
    theirs.close()
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
    original: Any = multiprocessing.util.spawnv_passfds

    def spawn(path: Any, arguments: Sequence[Any], descriptors: Sequence[int]) -> int:
        command = " ".join(map(os.fsdecode, arguments))
        called = _SPAWN.search(command)
        if called is None:
            pid: int = original(path, arguments, descriptors)
            return pid
        job = {
            "call": dict(re.findall(r"(\w+)=(\d+)", called[1])),
            "numbers": [*descriptors],
            "env": dict(os.environ),
            "cwd": str(Path.cwd()),
        }
        socket.send_fds(ours, [orjson.dumps(job)], descriptors)
        return int(ours.recv(_BYTES))

    setattr(multiprocessing.util, original.__name__, spawn)
    return None


def _serve_spawns(asked: socket.socket) -> Work:
    """Fork spawned processes until the other end is closed; return the work of one."""
    while True:
        job, descriptors = _received(asked)
        if job is None:
            os._exit(0)
        told, tell = os.pipe()
        middle = os.fork()
        if not middle:
            middle = os.getpid()
            if pid := os.fork():
                os.write(tell, str(pid).encode())
                os._exit(0)
            for descriptor in (told, tell):
                os.close(descriptor)
            asked.close()
            while os.getppid() == middle:
                time.sleep(0.001)
            return _spawned(job, descriptors)
        os.waitpid(middle, 0)
        asked.send(os.read(told, _BYTES))
        for descriptor in (told, tell, *descriptors):
            os.close(descriptor)


def _spawned(job: dict[str, Any], descriptors: Sequence[int]) -> Work:
    """Make this process a spawned one; return its work."""
    for descriptor, number in zip(descriptors, job["numbers"], strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv[:] = ["-c", "--multiprocessing-fork"]
    _settle(job)
    call = {name: int(number) for name, number in job["call"].items()}
    return _forking_spawned() or partial(multiprocessing.spawn.spawn_main, **call)


def _received(asked: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next job and its descriptors, which stay clear of the sender's numbers."""
    message, received, _, _ = socket.recv_fds(asked, _BYTES, 16)
    descriptors = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for one in received]
    for one in received:
        os.close(one)
    return (orjson.loads(message) if message else None), descriptors


if __name__ == "__main__":
    main(int(sys.argv[1]))
