"""The memory of a server's processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.servers.server import Server

__all__ = ["resident"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Seconds of rest after the last request: SGLang ends requests of absent clients late.
_REST = 3.0
#: Places of the group and of the resident pages in the files of /proc, behind the name.
_GROUP = 2


def resident(server: Server) -> int:
    """Return the bytes that all processes of a server hold once it is at rest."""
    time.sleep(_REST)
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if int(fields[_GROUP]) == server.process.pid:
                total += int((process / "statm").read_text().split()[1]) * _PAGE
        except OSError:
            continue  # it has ended
    return total
