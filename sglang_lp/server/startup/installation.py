"""The hooks installed in this process, and its end if they are not all live."""

from __future__ import annotations

import os
import pkgutil
from typing import TYPE_CHECKING, Any, NoReturn

from sglang_lp.errors import InstallError, SglangLpError
from sglang_lp.trust import Policy

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard

#: Environment variable that names the policy file.
POLICY_VARIABLE = "SGLANG_LP_POLICY"

#: Names of functions of SGLang, each with our function there. Empty until the plugin was loaded.
installed: list[tuple[str, Any]] = []
guard: Guard | None = None
#: Whether this process starts its schedulers, or was started as one, through the guard.
schedulers_are_guarded = False

#: Most wrappers that are followed on one function: far more than any set of plugins adds.
_MOST_WRAPPERS = 20


def policy_in_force() -> Policy:
    """Return the policy that the environment names, the default one if it names none.

    Raises:
        PolicyError: The file that it names is no policy.
    """
    named = os.environ.get(POLICY_VARIABLE)
    return Policy.from_toml(named) if named else Policy.default()


def status() -> dict[str, str]:
    """Return ``"live"`` or ``"lost"`` for each hook; empty where the plugin was not loaded."""
    lost = {target for target, ours in installed if not _is_live(target, ours)}
    return {target: "lost" if target in lost else "live" for target, _ in installed}


def installed_guard() -> Guard | None:
    """Return this process's guard if all of its hooks are live, else ``None``."""
    return guard if all(state == "live" for state in status().values()) else None


def refuse(why: str) -> NoReturn:
    """End this process at start-up.

    Raises:
        SystemExit: Always. SGLang's plugin loader swallows every ``Exception``.
    """
    end(InstallError(f"the guard would not be everywhere: {why}"))


def end(error: SglangLpError) -> NoReturn:
    """End this process at start-up, with a complete error message.

    Raises:
        SystemExit: Always. SGLang's plugin loader swallows every ``Exception``.
    """
    # The log may not be set up yet, or be set to errors only; this line must be seen.
    os.write(2, f"sglang-lp: this process does not serve: {error}\n".encode())
    raise SystemExit(78) from error  # EX_CONFIG


def _is_live(target: str, ours: Any) -> bool:
    """Tell whether calling ``target`` leads to our function, through whatever wraps it."""
    try:
        function = pkgutil.resolve_name(target)
    except (AttributeError, ImportError):
        return False
    for _ in range(_MOST_WRAPPERS):
        cells = getattr(function, "__closure__", None) or ()
        if any(cell.cell_contents is ours for cell in cells):
            return True
        function = getattr(function, "__wrapped__", None)
    return False
