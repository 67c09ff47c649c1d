"""Custom logit processors for SGLang: exact, fast and safe to serve.

Importing this package imports nothing else: take what you need from its modules.
"""

from __future__ import annotations

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version

        return version("sglang-lp")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
