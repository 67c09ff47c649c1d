"""Custom logit processors for SGLang: exact, fast and safe to serve.

The names that most programs need. Each is imported when it is first used, so that importing the
package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_lp.client import attach
    from sglang_lp.edits import Edits
    from sglang_lp.params import Parameters
    from sglang_lp.processor import LogitProcessor
    from sglang_lp.request import History, Request

    __version__: str

__all__ = [
    "Edits",
    "History",
    "LogitProcessor",
    "Parameters",
    "Request",
    "__version__",
    "attach",
]

_HOMES = {
    "Edits": "sglang_lp.edits",
    "History": "sglang_lp.request",
    "LogitProcessor": "sglang_lp.processor",
    "Parameters": "sglang_lp.params",
    "Request": "sglang_lp.request",
    "attach": "sglang_lp.client",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("sglang-lp")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
