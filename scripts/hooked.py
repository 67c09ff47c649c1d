"""Prints as JSON the functions of this environment's SGLang that the plugin hooks.

Nothing is hooked: every target is looked up, with its signature and a digest of its source.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import pkgutil
import sys
from importlib.metadata import version
from typing import Any

__all__ = ["found"]


def found() -> dict[str, Any]:
    """Return the version, the hooked functions, and SGLang's algorithms and processors."""
    from sglang.srt.sampling import custom_logit_processor as stock
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sglang_lp.server.startup.hook_table import HOOKS

    processors = [
        name
        for name, value in vars(stock).items()
        if inspect.isclass(value) and issubclass(value, stock.CustomLogitProcessor)
    ]
    return {
        "version": version("sglang"),
        "targets": {hook.target: _described(hook.target) for hook in HOOKS},
        "algorithms": sorted(one.name for one in SpeculativeAlgorithm),
        "processors": sorted(processors),
    }


def _described(target: str) -> dict[str, str] | None:
    try:
        function = pkgutil.resolve_name(target)
    except (AttributeError, ImportError):
        return None
    function = inspect.unwrap(function)
    source = inspect.getsource(function)
    return {
        "signature": str(inspect.signature(function)),
        "source": hashlib.sha256(source.encode()).hexdigest(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(found()) + "\n")
