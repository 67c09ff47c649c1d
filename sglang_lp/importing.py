"""Importing what the operator named: the one place that does."""

from __future__ import annotations

import importlib
from typing import Any

from sglang_lp.errors import PolicyError

__all__ = ["import_named"]


def import_named(module: str, name: str, where: str) -> Any:
    """Return what a module has under a name. Only ever called with the operator's names.

    Args:
        module: Module to import.
        name: Name in it.
        where: Place in the policy, for messages.

    Raises:
        PolicyError: It cannot be imported.
    """
    entry = f"{where}: {module}:{name}"
    if module == "__main__":
        raise PolicyError(
            f"{entry}: expected a class of a module that can be imported; a class of __main__ "
            "travels as code, so move it to a module, or pin a payload"
        )
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:  # a script without a main guard may exit
        raise PolicyError(
            f"{entry}: importing {module} failed: {type(error).__name__}: {error}; "
            "install the package in the server's environment, or correct the name"
        ) from error
    if found is None:
        raise PolicyError(f"{entry}: {module} has no {name}; correct the name")
    return found
