"""The machine of a benchmark, and the state of its process."""

from __future__ import annotations

import gc
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["age", "machine"]


def machine() -> dict[str, Any]:
    """Describe the machine and the versions, without the machine's name."""
    model = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "sglang", "dill", "msgspec")},
        "load": round(os.getloadavg()[0], 1),
    }


def age() -> None:
    """Bring the process to the state of a server that has been up for a while.

    There nearly all objects are old, and Python looks through them all once in many thousands of
    steps. A young process does so within the few that are measured, for milliseconds.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
