"""What ``inspect`` and ``allow`` show of a payload before anything is decided."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from sglang_lp import wire
from sglang_lp.errors import RequestError, shown

__all__ = ["decode", "lines", "read", "say"]

#: Longest text that a person can have inspected.
_MAX_CHARS = 4 << 20

#: Opcodes that import, call or change something once they are executed.
_IMPORTING = {"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"}
_CALLING = {"OBJ", "REDUCE", "NEWOBJ", "NEWOBJ_EX"}
_CHANGING = {"BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS"}
_ACTING = _IMPORTING | _CALLING | _CHANGING


def say(line: str) -> None:
    """Print one line; the one place where the command line talks."""
    sys.stdout.write(line + "\n")


def read(source: str) -> str:
    """Return the text of a payload.

    Args:
        source: The text itself, ``-`` for standard input, or ``@FILE``.

    Raises:
        RequestError: The file or standard input cannot be read as text.
    """
    try:
        if source == "-":
            return sys.stdin.read(_MAX_CHARS + 1).strip()
        if source.startswith("@"):
            with Path(source[1:]).open(encoding="utf-8") as file:
                return file.read(_MAX_CHARS + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {shown(source)} as text: {error}") from error
    return source.strip()


def decode(payload: str) -> bytes:
    """Return the pickle in a payload of any size that a person may look at.

    Raises:
        PayloadRefused: It is not a payload at all.
    """
    return wire.decode(payload, _MAX_CHARS)


def lines(pickled: bytes, payload_chars: int) -> Iterator[str]:
    """Explain a pickle, line by line, without executing any of it."""
    kind, module, name = wire.describe(pickled)
    yield f"what     {kind.value}"
    if kind is wire.Kind.REFERENCE:
        yield f"class    {shown(f'{module}:{name}', 200)[1:-1]}"
    yield f"sha256   {wire.digest(pickled)}"
    yield f"size     {len(pickled)} bytes in {payload_chars} characters"
    if kind is not wire.Kind.REFERENCE:
        yield "opcodes  (! marks what would import, call or change something)"
        for line in wire.opcodes(pickled):
            name = line.split()[1] if line[:5].strip().isdigit() else ""
            yield f"  {'!' if name in _ACTING else ' '} {line}"
