"""Writes ``sglang_lp/client/calls.pyi``: :func:`sglang_lp.attach` for editors and type checkers.

Each built-in has an overload with its name and the parameters of its schema, so an editor completes
them and a type checker refuses one that is misspelt.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scripts.processors import find_base
from sglang_lp import builtins
from sglang_lp.cli.describe import summary

if TYPE_CHECKING:
    from sglang_lp.processor import LogitProcessor

STUB = Path(__file__).parents[1] / "sglang_lp" / "client" / "calls.pyi"

_HEAD = '''\
"""The calls of :func:`sglang_lp.attach`, for editors and type checkers.

Written from the schemas of the built-ins: ``.venv/bin/python -m scripts.calls``.
"""

from collections.abc import Collection
from typing import Any, Literal, overload

from sglang_lp.client.attachment import Attachment

@overload
def attach(processor: type[Any], /, **params: Any) -> Attachment:
    """A class of your own, or of another library."""

@overload
def attach(processor: list[Any] | tuple[Any, ...], /) -> Attachment:
    """Several processors, or attachments, for one request."""
'''

_SCALARS: dict[type[Any], str] = {
    msgspec.inspect.BoolType: "bool",
    msgspec.inspect.FloatType: "float",
    msgspec.inspect.IntType: "int",
    msgspec.inspect.NoneType: "None",
    msgspec.inspect.StrType: "str",
}


def write_stub() -> str:
    """Return the stub file, as ``ruff format`` leaves it."""
    written = _HEAD + "".join(f"\n{_overload(*one)}" for one in _calls())
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", STUB, "-"],
        input=written,
        capture_output=True,
        text=True,
        check=True,
    )
    return formatted.stdout


def _calls() -> Iterator[tuple[type[LogitProcessor], list[str]]]:
    """Yield the built-ins with different parameters, each with the names that take them."""
    calls: dict[type[LogitProcessor], list[str]] = {}
    for name in builtins.__all__:
        processor = getattr(builtins, name)
        calls.setdefault(find_base(processor) or processor, []).append(name)
    yield from calls.items()


def _overload(processor: type[LogitProcessor], names: list[str]) -> str:
    literal = ", ".join(f'"{name}"' for name in names)
    fields = msgspec.inspect.type_info(processor.Params).fields  # type: ignore[attr-defined]
    params = [
        f"{field.encode_name}: {_typed(field.type)}{'' if field.required else ' = ...'}"
        for field in fields
    ]
    # A chain takes the parameters of its links, such as "0.words".
    rest = ", **links: Any" if processor is builtins.ChainLogitProcessor else ""
    return (
        f"@overload\ndef attach(processor: Literal[{literal}], /, *, {', '.join(params)}{rest}"
        f') -> Attachment:\n    """{summary(processor)}"""\n'
    )


def _typed(kind: Any) -> str:
    """Return the type of a value that a caller may give, which becomes one of the schema."""
    types = msgspec.inspect
    if isinstance(kind, types.Metadata):
        return _typed(kind.type)
    if isinstance(kind, types.UnionType):
        return " | ".join(map(_typed, kind.types))
    if isinstance(kind, types.VarTupleType | types.FrozenSetType | types.ListType):
        return f"Collection[{_typed(kind.item_type)}]"
    if isinstance(kind, types.LiteralType):
        return f"Literal[{', '.join(map(_quoted, kind.values))}]"
    if isinstance(kind, types.EnumType):
        return f"Literal[{', '.join(_quoted(one.value) for one in kind.cls)}]"
    return _SCALARS[type(kind)]


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    STUB.write_text(write_stub())
