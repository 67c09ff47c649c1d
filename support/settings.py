"""How SGLang runs on a machine without a GPU and without a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_lp.server.versions import ALLOW_UNTESTED

ROOT = Path(__file__).resolve().parent.parent
#: The KV pool is small enough to start at once.
CPU_ARGUMENTS: Mapping[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "grammar_backend": "none",
    # What other processes take while a server starts counts against its part, of which the pool
    # below needs little.
    "mem_fraction_static": 0.4,
    "max_total_tokens": 8192,
    "random_seed": 1,
    "skip_server_warmup": True,
    # An idle scheduler would spin, on cores that the other servers and the tests need.
    "sleep_on_idle": True,
    "enable_custom_logit_processor": True,
}
#: Names the file into which :mod:`support.processors.recording` writes.
RECORD = "SGLANG_LP_TEST_RECORD"


def environment(variables: Mapping[str, str], paths: Sequence[Path] = ()) -> dict[str, str]:
    """Return the environment of a process that runs SGLang.

    It has only the given settings of SGLang and those of ``make test SUITE=canary``, stays off the
    network, and imports this checkout, then what ``PYTHONPATH`` names.

    Args:
        variables: Environment variables to set.
        paths: Directories to import from before the checkout, such as those of plugins.
    """
    env = {
        key: value
        for key, value in os.environ.items()
        if key == ALLOW_UNTESTED or not key.startswith("SGLANG_")
    }
    # Compiling tens of thousands of modules anew would double the time of every start.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    given = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    imported = dict.fromkeys(map(str, [*paths, ROOT, *given]))
    return env | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONPATH": os.pathsep.join(imported),
        "PYTHONUNBUFFERED": "1",
        **variables,
    }
