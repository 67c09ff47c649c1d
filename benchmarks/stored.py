"""Stores results as indented JSON, so that a diff shows what changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

__all__ = ["FOLDER", "as_json", "store"]

FOLDER = Path(__file__).with_name("results")


def as_json(results: Any) -> bytes:
    """Return results as indented JSON."""
    return orjson.dumps(results, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def store(results: Any, file: Path) -> None:
    """Write results to a file, whose folder is made if it is missing."""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(as_json(results))
