"""A trace for each scene that has an answer to show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from sglang_lp import cli

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from demo.show import Scene

__all__ = ["write_traces"]


def write_traces(scenes: Sequence[Scene], model: Path, folder: Path) -> Iterator[tuple[Path, bool]]:
    """Write the pages, as `sglang-lp trace` does.

    Args:
        scenes: Those that were played.
        model: Directory of the checkpoint of scenes that name none.
        folder: Where to write.

    Yields:
        Each page, and whether its answer keeps to its request.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number, scene in enumerate(scenes, 1):
        files = []
        name = f"{number}-{re.sub('[^a-z]+', '-', scene.title.lower())[:40].strip('-')}"
        for place, (request, answer) in enumerate(scene.exchanges):
            for what, content in (("request", request), ("answer", answer)):
                file = folder / f"{name}-{place}-{what}.json"
                file.write_bytes(orjson.dumps(content))
                files.append(str(file))
        if files:
            page = folder / f"{name}.html"
            beside = ["--beside", *files[2:]] if files[2:] else []
            arguments = [
                "--tokenizer",
                str(scene.model or model),
                "--output",
                str(page),
                *files[:2],
                *beside,
            ]
            yield page, cli.main(["trace", *arguments]) == 0
