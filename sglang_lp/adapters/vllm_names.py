"""vLLM's public names, for classes that import them where vLLM is not installed.

The stand-ins are importable as ``vllm`` only while an allowed class is imported, made or called.
Otherwise ``import vllm`` fails as before, so that no other library mistakes them for vLLM. With
vLLM installed, its own names are used.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from sglang_lp.adapters.vllm_stand_in import NAMES

_importing = threading.RLock()


@contextmanager
def vllm_names() -> Iterator[None]:
    """Let modules import vLLM's names inside the block, from vLLM itself if it is installed."""
    with _importing:
        if _is_installed():
            yield
            return
        modules = _modules()
        sys.modules.update(modules)
        try:
            yield
        finally:
            for path in modules:
                sys.modules.pop(path, None)


def name(module: str, attribute: str) -> Any:
    """Return a name of vLLM as adapted classes see it.

    Args:
        module: As ``vllm.sampling_params``.
        attribute: Name in it.
    """
    if _is_installed():
        return getattr(importlib.import_module(module), attribute)
    return NAMES[module][attribute]


@cache
def _is_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None


@cache  # every call of a class uses them
def _modules() -> dict[str, ModuleType]:
    modules = {path: _module(path, names) for path, names in NAMES.items()}
    for path, module in modules.items():
        parent, _, child = path.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    return modules


def _module(path: str, names: dict[str, Any]) -> ModuleType:
    module = ModuleType(path, "A stand-in of vLLM's public names by sglang-lp.")
    module.__path__ = []  # a package, so that what it lacks is an ImportError that names it
    module.__spec__ = ModuleSpec(path, None, is_package=True)
    module.__dict__.update(names)
    return module
