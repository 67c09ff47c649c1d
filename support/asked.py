"""A request's question to the operator's rules, written with names as clients write them."""

from __future__ import annotations

from typing import Any

from sglang_lp import builtins
from sglang_lp.adapters import as_processor
from sglang_lp.policy import Asked

__all__ = ["asked_for"]


def asked_for(payload: Any, *rest: Any, **fields: Any) -> Asked:
    """Return the fields of a request, with the class that a gate finds for its payload.

    Args:
        payload: The name of a built-in or of a profile; a class; or ``None``.
        rest: Further fields.
        fields: Further fields by name.
    """
    runs = payload
    if isinstance(payload, type):
        runs = as_processor(payload)
    elif payload in builtins.__all__:
        runs = getattr(builtins, payload)
    return Asked(runs, *rest, **fields)
