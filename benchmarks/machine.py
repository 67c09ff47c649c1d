"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["machine"]


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
