"""Stand-ins for packages that SGLang needs on a GPU, and for the metadata of this toolkit.

The stand-in for ``sgl_kernel``, SGLang's kernels, has every name, so that SGLang can be imported. A
few functions compute in plain torch (``support.cpu.kernels``); a call of any other function says
which kernel is missing. Without cutlass SGLang fuses no projections.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from support.cpu import kernels
from support.settings import ROOT

__all__ = ["PLUGIN", "do_without_cutlass", "fill", "write"]

#: What ``SGLANG_PLUGINS`` calls :func:`do_without_cutlass`.
PLUGIN = "sglang_lp_without_cutlass"

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
    """Write the package and entry points into a folder, for processes that import from it.

    SGLang finds plugins by the metadata of installed packages, which a bare checkout lacks.
    """
    (folder / f"{_PACKAGE}.py").write_text(f"from {__name__} import fill\n\nfill(__name__)\n")
    found = {"sglang.srt.plugins": {PLUGIN: f"{__name__}:do_without_cutlass"}}
    try:
        distribution("sglang-lp")
    except PackageNotFoundError:
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        found = {group: found.get(group, {}) | points for group, points in declared.items()}
    about = folder / "sglang_lp_stand_ins-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sglang-lp-stand-ins\nVersion: 0\n"
    )
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in found.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))


def do_without_cutlass() -> None:
    """Keep SGLang from fusing projections if cutlass is missing."""
    if find_spec("cutlass") is None:
        from sglang.srt.layers.dual_gemm import DualGemm

        DualGemm._select_mode = _unfused  # noqa: SLF001 - it has no public switch


def _unfused(*_args: Any, **_kwargs: Any) -> None:
    """Return the mode in which nothing is fused."""


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
