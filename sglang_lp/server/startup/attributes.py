"""Which attributes the instances of a class have, told from the class."""

from __future__ import annotations

import dis
import inspect
from typing import Any


def has_attribute(kind: type, name: str) -> bool:
    """Tell whether instances of a class have an attribute, without making an instance."""
    return hasattr(kind, name) or any(
        name in inspect.get_annotations(base)
        or any(_sets(member, name) for member in vars(base).values())
        for base in kind.__mro__
    )


def _sets(member: Any, name: str) -> bool:
    """Tell whether a method sets an attribute of this name."""
    code = getattr(inspect.unwrap(member), "__code__", None)
    if code is None or name not in code.co_names:
        return False
    return any(
        one.opname == "STORE_ATTR" and one.argval == name for one in dis.get_instructions(code)
    )
