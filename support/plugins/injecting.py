"""An SGLang plugin for tests: makes any function of the toolkit raise in a running server.

A test gives orders by a file and a signal. A process then records which functions are called, or
makes one function raise at its next call. No function is replaced: Python calls a profile function
at every call, and an error of the profile function is raised in the called one. The main thread and
the threads of executors, in which SGLang reads chats, have a profile function.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import orjson

import sglang_lp
from support.settings import RECORD

if TYPE_CHECKING:
    from support.servers.server import Server

__all__ = ["Faults", "Injected", "install"]

_PACKAGE = Path(sglang_lp.__file__).parent
_SIGNAL = signal.SIGUSR2
#: Seconds within which every process takes an order.
_PATIENCE = 30
#: Seconds after which an order is given again. Python acts on a signal between two instructions,
#: so one that comes just before a process waits for a message is acted on after that message.
_AGAIN = 1

_names: dict[CodeType, str | None] = {}
_calls: Counter[str] = Counter()
_taken = 0
_profile: Callable[[FrameType, str, Any], None] | None = None


class Injected(RuntimeError):
    """The error that an injected fault raises."""


def install() -> None:
    """Take orders in this process; SGLang calls this in each of its own."""
    if RECORD in os.environ:
        directory = _directory(Path(os.environ[RECORD]))
        directory.mkdir(exist_ok=True)
        signal.signal(_SIGNAL, _obey)
        _profile_executors()
        (directory / f"{os.getpid()}.taken").write_text("0")


def _profile_executors() -> None:
    submit = ThreadPoolExecutor.submit

    def profiled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        sys.setprofile(_profile)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(None)

    def submit_profiled(
        executor: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        return submit(executor, profiled, function, *args, **kwargs)

    ThreadPoolExecutor.submit = submit_profiled  # type: ignore[assignment, method-assign]


def _directory(record: Path) -> Path:
    return record.with_suffix(".faults")


def _name(code: CodeType) -> str | None:
    """Return the name of a function of the toolkit, ``None`` for any other."""
    if code not in _names:
        path = Path(code.co_filename)
        name = None
        if path.is_relative_to(_PACKAGE):
            module = path.relative_to(_PACKAGE).with_suffix("").as_posix().replace("/", ".")
            name = f"{module}:{code.co_qualname}:{code.co_firstlineno}"
        _names[code] = name
    return _names[code]


def _obey(_number: int, _frame: FrameType | None) -> None:
    global _profile, _taken  # noqa: PLW0603 - a signal has no other place to keep them
    directory = _directory(Path(os.environ[RECORD]))
    order = orjson.loads((directory / "order").read_bytes())
    if order["number"] == _taken:
        return
    _taken = order["number"]
    sys.setprofile(None)
    wanted, left = order["raise"], order["after"]

    def watch(frame: FrameType, event: str, _value: Any) -> None:
        if event == "call":
            name = _name(frame.f_code)
            if name is not None:
                _calls[name] += 1

    def inject(frame: FrameType, event: str, _value: Any) -> None:
        nonlocal left
        if event == "call" and _name(frame.f_code) == wanted:
            left -= 1
            if left != -1:  # in one thread alone
                return
            sys.setprofile(None)
            with (directory / "raised").open("a") as file:
                file.write(f"{os.getpid()} {wanted}\n")
            raise Injected(wanted)

    (directory / f"{os.getpid()}.calls").write_bytes(orjson.dumps(_calls))
    (directory / f"{os.getpid()}.taken").write_text(str(order["number"]))
    _profile = watch if order["watch"] else None if wanted is None else inject
    sys.setprofile(_profile)


class Faults:
    """Orders to a running server.

    Args:
        server: All of its processes obey.
    """

    def __init__(self, server: Server) -> None:
        self._directory = _directory(server.record)

    def watch(self) -> None:
        """Record from now on which functions are called."""
        self._order(watch=True)

    def calls(self) -> dict[str, int]:
        """Return how often each function was called in one process, and stop recording."""
        self._order()
        calls: Counter[str] = Counter()
        for file in self._directory.glob("*.calls"):
            calls |= Counter(orjson.loads(file.read_bytes()))
        return dict(sorted(calls.items()))

    def inject(self, name: str, after: int = 0) -> None:
        """Let a function raise, once in each process that calls it.

        Args:
            name: As in :meth:`calls`.
            after: How many calls it answers first.
        """
        (self._directory / "raised").write_text("")
        self._order(fault=name, after=after)

    def raised(self) -> int:
        """Return in how many processes the function raised, and let it raise no more."""
        self._order()
        return len((self._directory / "raised").read_text().splitlines())

    def _order(self, *, watch: bool = False, fault: str | None = None, after: int = 0) -> None:
        number = time.time_ns()
        order = {"number": number, "watch": watch, "raise": fault, "after": after}
        (self._directory / "order").write_bytes(orjson.dumps(order))
        waiting = {file: int(file.stem) for file in self._directory.glob("*.taken")}
        begin = time.monotonic()
        given = 0
        while waiting:
            waited = time.monotonic() - begin
            if waited > _PATIENCE:
                raise TimeoutError(f"no answer from the processes {[*waiting.values()]}")
            if waited >= given * _AGAIN:
                given += 1
                _give(waiting)
            waiting = {
                file: process
                for file, process in waiting.items()
                if file.read_text() != str(number)
            }
            time.sleep(0.01)


def _give(waiting: dict[Path, int]) -> None:
    """Give the order to processes; one that has ended is not waited for."""
    for file, process in [*waiting.items()]:
        try:
            os.kill(process, _SIGNAL)
        except ProcessLookupError:
            del waiting[file]
            file.unlink()
