"""Hatchling's hook: the README as an index of packages shows it, with absolute links and images.

The links of the README work in a checkout and in the documentation, because they are relative. An
index of packages has only its text, so the build points them at the version's tag.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_REPOSITORY = "https://github.com/sglang-lp/sglang-lp"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|#)([^)]+)\)")


def absolute(text: str, version: str) -> str:
    """Return Markdown whose relative links and images point at a version's files.

    Args:
        text: Markdown with paths relative to the root of the repository.
        version: Version whose tag has the files.
    """

    def point(link: re.Match[str]) -> str:
        image, label, path = link.groups()
        kind = "raw" if image else "blob"
        return f"{image}[{label}]({_REPOSITORY}/{kind}/v{version}/{path})"

    return _LINK.sub(point, text)


class Readme(MetadataHookInterface):
    """Sets the project's ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata of a build."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, metadata["version"]),
        }
