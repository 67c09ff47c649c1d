"""Plots as SVG files whose colours follow the reader's light or dark mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Matplotlib writes white areas and black lines into each element, and leaves texts black.
_DARK = """@media (prefers-color-scheme: dark) {
  svg { fill: #f0f6fc }
  [style*="fill: #ffffff"] { fill: #0d1117 !important }
  [style*="stroke: #000000"] { stroke: #f0f6fc !important }
}"""


def save(figure: Any, file: Path) -> None:
    """Save a figure of Matplotlib; the same figure gives the same file."""
    figure.savefig(file, metadata={"Date": None})
    file.write_text(with_dark_mode(file.read_text()))


def with_dark_mode(drawn: str) -> str:
    """Return an SVG of Matplotlib with the colours of dark mode."""
    return drawn.replace("</style>", f"\n{_DARK}</style>", 1)
