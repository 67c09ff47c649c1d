"""Stores results as JSON with one record a line, so that a diff shows which records changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

__all__ = ["FOLDER", "as_json", "store"]

FOLDER = Path(__file__).with_name("results")


def as_json(results: Any) -> bytes:
    """Return results as JSON; a flat list or object is one line."""
    return "".join((*_pieces(results, "\n"), "\n")).encode()


def _pieces(value: Any, line_break: str) -> Iterator[str]:
    inside = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(isinstance(x, dict | list) for x in inside):
        yield orjson.dumps(value).decode()
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    named = value.items() if isinstance(value, dict) else (("", one) for one in value)
    separator = opening
    for name, one in named:
        yield f"{separator}{line_break}  "
        if opening == "{":
            yield f"{orjson.dumps(name).decode()}: "
        yield from _pieces(one, f"{line_break}  ")
        separator = ","
    yield f"{line_break}{closing}"


def store(results: Any, file: Path) -> None:
    """Write results to a file, whose folder is made if it is missing."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(as_json(results))
