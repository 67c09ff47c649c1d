"""Why a server ended, by its log: the exception and the function that raised it."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["cause"]

_ERROR = re.compile(r"^(?:\[[^\]]*\] )?(?:\S+\.)?(\w+(?:Error|Exception|Interrupt|Exit))\b:? ?(.*)")
_FRAME = re.compile(r'File ".*?(\w+\.py)", line \d+, in (\w+)')


def cause(log: Path) -> str:
    """Return a line that two ends for one reason share; empty if the log tells none."""
    frame = found = ""
    for line in log.read_text(errors="replace").splitlines():
        if at := _FRAME.search(line):
            frame = " ".join(at.groups())
        elif frame and (error := _ERROR.match(line)):
            found, frame = f"{error[1]} in {frame}", ""
    return found
