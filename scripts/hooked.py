"""Prints as JSON what the plugin needs of SGLang, and whether the SGLang on the path has it.

Nothing is hooked: every function is looked up, with its signature, a digest of its source and the
parameters that a hook would misread, every attribute with the test of start-up. ``PYTHONPATH``
chooses an SGLang that is not installed.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any

from scripts.request_fields import unknown
from sglang_lp.server.front.routes import walk
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.startup.attribute_table import ATTRIBUTES
from sglang_lp.server.startup.attributes import has_attribute
from sglang_lp.server.startup.hook_table import HOOKS, Shared
from sglang_lp.server.startup.signatures import misread
from sglang_lp.trust import Policy

__all__ = ["found"]


def found() -> dict[str, Any]:
    """List the needs of hooks, SGLang's algorithms, processors and routes, and unknown fields.

    Rows of the tables with ``until`` are for older releases and left out.
    """
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.sampling import custom_logit_processor as stock
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    processors = [
        name
        for name, value in vars(stock).items()
        if inspect.isclass(value) and issubclass(value, stock.CustomLogitProcessor)
    ]
    shared = Shared(Guard(Policy.default()))
    newest = [hook for hook in HOOKS if hook.until is None]
    functions: dict[str, Any] = {}
    for hook in newest:
        described = functions.setdefault(hook.target, _described(hook.target))
        if "signature" in described:
            described["misread"] += misread(hook.make(shared), hook.kind, hook.target)
    return {
        "version": version("sglang"),
        "functions": functions,
        "attributes": {
            f"{uses.owner}.{name}": _has(uses.owner, name)
            for uses in ATTRIBUTES
            if uses.until is None
            for name in uses.names
        },
        "algorithms": sorted(one.name for one in SpeculativeAlgorithm),
        "processors": sorted(processors),
        "routes": sorted({f"{path} {endpoint.__name__}" for path, endpoint in walk(app)}),
        "unknown_fields": unknown(),
    }


def _described(target: str) -> dict[str, Any]:
    """Describe a function, or say why there is none, with the names next to it."""
    path, _, name = target.rpartition(".")
    try:
        owner = resolve_name(path)
    except (AttributeError, ImportError) as error:
        return {"missing": f"gone with `{path}`: {error}", "others": []}
    others = sorted(one for one, value in vars(owner).items() if callable(value))
    if not hasattr(owner, name):
        return {"missing": "gone", "others": others}
    function = inspect.unwrap(getattr(owner, name))
    return {
        "signature": str(inspect.signature(function)),
        "source": hashlib.sha256(inspect.getsource(function).encode()).hexdigest(),
        "misread": [],
        "others": others,
    }


def _has(owner: str, name: str) -> bool:
    try:
        return has_attribute(resolve_name(owner), name)
    except (AttributeError, ImportError):
        return False


if __name__ == "__main__":
    sys.stdout.write(json.dumps(found()) + "\n")
