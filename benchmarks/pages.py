"""The parts of the documentation that benchmarks write, between two marks on a page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from benchmarks.stored import FOLDER, store
from support.settings import ROOT

__all__ = ["Part", "renew", "with_block"]


class Part(NamedTuple):
    """A block of a page, written from the stored results of a benchmark.

    Attributes:
        name: Of the results and of the marks.
        page: File in ``docs``.
        block: Returns the part in Markdown from results.
    """

    name: str
    page: str
    block: Callable[[Any], str]

    @property
    def file(self) -> Path:
        """Where the results are stored."""
        return FOLDER / f"{self.name}.json"

    def stored(self) -> Any:
        """Return the stored results."""
        return orjson.loads(self.file.read_bytes())

    def store(self, results: Any) -> None:
        """Store new results, and renew the page."""
        store(results, self.file)
        self.renew()

    def renew(self) -> None:
        """Renew the page from the stored results."""
        renew(self.page, self.name, self.block(self.stored()))


def renew(page: str, name: str, block: str) -> None:
    """Write a block of Markdown between the marks of a benchmark, on a page in ``docs``."""
    path = ROOT / "docs" / page
    path.write_text(with_block(path.read_text(), name, block))


def with_block(text: str, name: str, block: str) -> str:
    """Return a page's text with another block between the marks of a benchmark.

    Raises:
        ValueError: The page has no such marks.
    """
    begin, end = (f"<!-- {mark}: benchmarks.{name} -->\n" for mark in ("begin", "end"))
    return f"{text[: text.index(begin)]}{begin}{block}\n{text[text.index(end) :]}"
