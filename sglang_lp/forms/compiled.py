"""Compiled functions: Python over arrays, compiled by numba when its module is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

__all__ = ["compiled"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: ``numpy``: a division by zero gives inf or NaN, and no check for it is compiled. Bounds are
#: checked only if ``NUMBA_BOUNDSCHECK`` is 1 when the process starts, as it is once in the tests.
_OPTIONS: dict[str, Any] = {"error_model": "numpy"}


def compiled(signature: str | None = None) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles a function at once, or finds it in numba's cache.

    Args:
        signature: Types of the arguments in numba's spelling; ``None`` for a function that only
            compiled functions call, which is compiled with them. With a signature nothing is
            compiled later, so no step waits for the compiler.
    """

    def compile_now(function: _Function) -> _Function:
        given = () if signature is None else ([signature],)
        try:
            return njit(*given, cache=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            return njit(*given, **_OPTIONS)(function)  # type: ignore[no-any-return]

    return compile_now
