"""Reading ``module:Class``, and importing it. Every import by name happens here."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from sglang_lp.errors import PolicyError, shown


def parse_entry(entry: str, where: str = "entry") -> tuple[str, str]:
    """Split ``module:Class``.

    Args:
        entry: The text.
        where: Its place in the policy or the command, for the message.

    Raises:
        PolicyError: Not two such names.
    """
    module, colon, name = entry.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), name)):
        return module, name
    hint = "; a nested class has no fixed payload" if "." in name else ""
    raise PolicyError(f'{where}: expected "package.module:Class", got {shown(entry, 120)}{hint}')


def import_named(module: str, name: str, where: str) -> Any:
    """Import a module and return its attribute. Only ever called with the operator's names.

    Args:
        module: Module to import.
        name: Name of the attribute.
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
            f"{_remedy(module, error)}"
        ) from error
    if found is None:
        raise PolicyError(f"{entry}: {module} has no {name}; correct the name")
    return found


def _remedy(module: str, error: BaseException) -> str:
    top = module.partition(".")[0]
    missing = isinstance(error, ModuleNotFoundError) and error.name == top
    if missing and (Path(f"{top}.py").is_file() or Path(top).is_dir()):
        return (
            f"{top} is in this folder, where Python does not look: install it (pip install -e .), "
            "or set PYTHONPATH=. here and for the server"
        )
    return "install the package in the server's environment, or correct the name"
