"""Input and output of a command: printing, asking, and reading and explaining a payload."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from threading import Event, Thread
from typing import Any, TextIO

import orjson

from sglang_lp import wire
from sglang_lp.errors import RequestError, escaped, shown

#: Longest payload text that is read.
_MAX_CHARS = 4 << 20

#: Seconds of waiting without a word.
_PATIENCE = 2
#: Seconds between two looks at the time.
_TICK = 0.5
#: Erases the line of a terminal.
_ERASE = "\r\x1b[K"

#: Opcodes that import, call or change something once they are executed.
_IMPORTING = {"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"}
_CALLING = {"OBJ", "REDUCE", "NEWOBJ", "NEWOBJ_EX"}
_CHANGING = {"BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS"}
_ACTING = _IMPORTING | _CALLING | _CHANGING


#: Errors in writing standard output in this run.
_lost: list[OSError] = []


@contextmanager
def printing() -> Iterator[list[OSError]]:
    """Escape characters that the terminal cannot show, and survive a closed pipe.

    Yields:
        The errors in writing standard output, complete when the block ends. A closed pipe, or an
        output that was closed from the start, is not one.
    """
    _lost.clear()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield _lost
    finally:
        _write(sys.stdout, flush=True)
        _write(sys.stderr, flush=True)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 item``, ``1,024 items``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


@contextmanager
def progress(what: str = "") -> Iterator[Callable[[str], None]]:
    """Show on a terminal what a command waits for, once it has waited two seconds.

    Args:
        what: The first step.

    Yields:
        A function that takes the next step. The line is on standard error, and is erased at the
        end; an output that is not a terminal gets none.
    """
    screen = sys.stderr
    if screen is None or not screen.isatty():
        yield lambda _step: None
        return
    steps, ended, began = [what], Event(), time.monotonic()

    def show() -> None:
        line = ""
        while not ended.wait(_TICK):
            seconds = time.monotonic() - began
            if seconds >= _PATIENCE and steps[-1]:
                line = f"{_ERASE}{escaped(steps[-1])} ({seconds:.0f} s)"
                print(line, end="", file=screen, flush=True)
        if line:
            print(_ERASE, end="", file=screen, flush=True)

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield steps.append
    finally:
        ended.set()
        thread.join()


def say(line: str) -> None:
    """Print one line."""
    _write(sys.stdout, line + "\n")


def say_json(value: Any) -> None:
    """Print a value as one line of JSON, for a program."""
    say(orjson.dumps(value).decode())


def complain(line: str) -> None:
    """Print one line on standard error."""
    _write(sys.stderr, line + "\n")


def ask(question: str) -> str:
    """Print a question and return the line that is typed; empty if there is no input."""
    _write(sys.stdout, question, flush=True)
    try:
        return sys.stdin.readline() if sys.stdin is not None else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _write(stream: TextIO | None, text: str = "", *, flush: bool = False) -> None:
    if stream is None:  # it was closed when Python started
        return
    try:
        stream.write(escaped(text))
        if flush:
            stream.flush()
    except OSError as error:
        # Discards the rest of the buffer too, so that the verb runs to its end.
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            _lost.append(error)
            complain(f"sglang-lp: cannot write to standard output: {error.strerror}")


def read(source: str) -> str:
    """Return the text of a payload.

    Args:
        source: The text itself, ``-`` for standard input, or ``@FILE``.

    Raises:
        RequestError: The file or standard input cannot be read as text, or is no payload.
    """
    try:
        if source == "-":
            if sys.stdin is None:
                raise RequestError("payload: expected a text on standard input, which is closed")
            text = sys.stdin.read(_MAX_CHARS + 1)
        elif source.startswith("@"):
            with Path(source[1:]).open(encoding="utf-8") as file:
                text = file.read(_MAX_CHARS + 1)
        else:
            return source
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"payload: cannot read {shown(source)} as text: {error}") from error
    if len(text) > _MAX_CHARS:
        raise RequestError(f"payload: expected at most {_MAX_CHARS} characters, got more")
    return text.removesuffix("\n")  # the end of the file's last line


def decode(payload: str) -> bytes:
    """Return the pickle in a payload.

    Raises:
        PayloadRefused: It is not a payload.
    """
    return wire.decode(payload, _MAX_CHARS)


def explain(pickled: bytes, payload_chars: int) -> Iterator[str]:
    """Explain a pickle, line by line, without executing any of it."""
    kind, module, name = wire.describe(pickled)
    yield f"what     {kind.value}"
    if kind is wire.Kind.REFERENCE:
        yield f"class    {shown(f'{module}:{name}', 200)[1:-1]}"
    yield f"sha256   {wire.digest(pickled)}"
    yield f"size     {len(pickled)} bytes in {payload_chars} characters"
    if kind is not wire.Kind.REFERENCE:
        yield "opcodes  (! marks opcodes that would import, call or change something)"
        for line in wire.opcodes(pickled):
            name = line.split()[1] if line[:5].strip().isdigit() else ""
            yield f"  {'!' if name in _ACTING else ' '} {line}"
