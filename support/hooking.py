"""SGLang's search for what refers to a hooked function, made once for all functions.

SGLang looks through every module for each function that a plugin hooks, which takes each process of
a server seconds of a core. Servers that tests spawn, as operators do, keep SGLang's own search.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import ModuleType

__all__ = ["propagate", "search_once"]

#: Identity of a module -> the module, and how many names it had when it was looked through. Some
#: modules have no hash.
_looked: dict[int, tuple[ModuleType, int]] = {}
#: Identity of an object -> names that refer to it, with the identities of their modules.
_places: dict[int, dict[tuple[int, str], None]] = {}


def search_once() -> None:
    """Apply hooks with :func:`propagate` in this process and in processes forked from it."""
    from sglang.srt.plugins import hook_registry

    _look()
    hook_registry._propagate_patch = propagate  # noqa: SLF001 - it has no public switch


def propagate(original: object, wrapped: object, source_module: object) -> int:
    """Let modules that refer to a hooked function refer to its wrapper, as SGLang's function does.

    Args:
        original: What is hooked.
        wrapped: Takes its place.
        source_module: Module or class that has the wrapper already.

    Returns:
        How many names were changed.
    """
    modules = _look()
    if isinstance(source_module, ModuleType):
        # It had the wrapper before it was looked through; a test may give it the function back.
        for name, value in vars(source_module).items():
            if value is wrapped:
                for one in (original, wrapped):
                    _places.setdefault(id(one), {})[id(source_module), name] = None
    changed = 0
    for place in [*_places.get(id(original), ())]:
        at, name = place
        module = modules.get(at, source_module)
        if module is source_module or vars(module).get(name) is not original:
            continue
        with suppress(AttributeError, TypeError):
            setattr(module, name, wrapped)
            _places.setdefault(id(wrapped), {})[place] = None
            changed += 1
    return changed


def _look() -> dict[int, ModuleType]:
    """Look through modules that are new, or have got new names; return all."""
    modules = {id(one): one for one in [*sys.modules.values()] if isinstance(one, ModuleType)}
    for at, module in modules.items():
        if _looked.get(at, (module, -1))[1] != len(vars(module)):
            _looked[at] = module, len(vars(module))
            for name, value in [*vars(module).items()]:
                if callable(value):
                    _places.setdefault(id(value), {})[at, name] = None
    return modules
