"""The trust boundary: a request chooses among the classes that the operator allowed.

To judge that nothing untrusted is executed, read these files in this order; they import nothing
else of this project but :mod:`sglang_lp.errors`:

1. ``trust/allow_list.py``: the allow list that the operator's policy hands in, with its classes.
2. ``wire/payload.py``: the text of a payload, its pickle, and the exact bytes of a class by
   reference.
3. ``trust/verifier.py``: the look-up from a payload to an allowed class, in this process's tables.
   Its ``_load_pin`` has the one call that unpickles anything.
4. ``wire/explain.py``: the explanation of a refused pickle; no decision rests on it.
5. ``trust/audit.py``: the log line and the counters of a refusal.

The operator's side is :mod:`sglang_lp.policy`: it reads the policy file, imports the classes that
the file names, and checks them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sglang_lp.trust.allow_list import Pin
from sglang_lp.trust.audit import Audit, Gate, Limits
from sglang_lp.trust.verifier import Allowed, Verifier

if TYPE_CHECKING:
    from sglang_lp.policy.file import Policy

__all__ = ["Allowed", "Audit", "Gate", "Limits", "Pin", "Policy", "Verifier"]


def __getattr__(name: str) -> Any:
    if name == "Policy":  # public under this name, and imports this package
        return import_module("sglang_lp.policy.file").Policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
