"""A stand-in for ``sgl_kernel``, the package with SGLang's kernels for GPUs.

It has every name, so that SGLang can be imported. A few functions compute in plain torch
(``support.cpu.kernels``); a call of any other function says which kernel is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from support.cpu import kernels

__all__ = ["fill", "write"]

_PACKAGE = "sgl_kernel"


def _unchanged(tensor: Any) -> Any:
    return tensor


def _no() -> bool:
    return False


#: Functions that ``support.cpu.kernels`` lacks. A strong reference only takes more memory.
_KNOWN: Mapping[str, Callable[..., Any]] = {
    "is_arch_support_pdl": _no,
    "weak_ref_tensor": _unchanged,
}


def write(folder: Path) -> None:
    """Write the package into a folder, for processes that import from it."""
    (folder / f"{_PACKAGE}.py").write_text(f"from {__name__} import fill\n\nfill(__name__)\n")


def fill(name: str) -> None:
    """Give a module that is being imported every name, and every module below it."""
    _fill(sys.modules[name])
    sys.modules[name].__path__ = []
    sys.meta_path.append(_Below())


def _fill(module: ModuleType) -> None:
    vars(module)["__getattr__"] = partial(_kernel, module.__name__)


def _kernel(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _KNOWN.get(name) or getattr(kernels, name, None) or _Missing(f"{module}.{name}")


class _Missing:
    """A kernel, or a type with constants, that the stand-in does not have."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"{self._name}: this kernel has no stand-in")


class _Below(MetaPathFinder, Loader):
    """Finds every module of the package."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None = None, _target: Any = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_PACKAGE}."):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, _spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        _fill(module)
