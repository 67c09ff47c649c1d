"""The servers of the tests: what each adds to ``CPU_ARGUMENTS``, and its environment variables.

Those in ``PLUGIN`` schedule in different ways; ``stock`` is SGLang without this toolkit's plugin.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from sglang_lp.server.versions import OLDEST
from support.server import SGLANG

#: Allows the processors of :mod:`support.recording`.
POLICY = Path(__file__).with_name("policy.toml")
#: On the import path of a server, makes SGLang load :mod:`support.probe`.
PROBE = Path(__file__).with_name("plugin")

Settings = tuple[Mapping[str, Any], Mapping[str, str]]
#: How a program of its own starts a server.
OWN_PROGRAM = (sys.executable, "-m", "support.own_program")

#: Few enough tokens that concurrent requests are retracted, with prefill in chunks of a few.
_SQUEEZED = {
    "chunked_prefill_size": 16,
    "max_total_tokens": 512,
    "schedule_conservativeness": 0.01,
}
#: Whether this is the oldest supported SGLang, which lacks some of what the newer ones have.
IS_OLDEST = version("sglang") == OLDEST
#: One list for each process; the oldest takes one for all.
_CORES = "0-1" if IS_OLDEST else "0|1"
SERVERS: Mapping[str, Settings] = {
    "default": ({"grammar_backend": "xgrammar"}, {}),
    "no overlap, no radix cache": (
        {"disable_overlap_schedule": True, "disable_radix_cache": True},
        {},
    ),
    "squeezed": (_SQUEEZED, {}),
    "data parallel": ({"dp_size": 2}, {"SGLANG_CPU_OMP_THREADS_BIND": _CORES}),
    "stock": ({}, {"SGLANG_PLUGINS": "sglang_lp_probe"}),
}
#: Server -> what starts it, where that is not SGLang's own command.
STARTED_BY = {"no overlap, no radix cache": OWN_PROGRAM}
PLUGIN = tuple(name for name in SERVERS if name != "stock")


def command(name: str) -> Sequence[str | Path]:
    """Return what starts a server."""
    return STARTED_BY.get(name, SGLANG)


def on_servers(*names: str) -> pytest.MarkDecorator:
    """Run the tests of a module on each of these servers."""
    return pytest.mark.parametrize("server", names, indirect=True, scope="session")
