"""Putting the hooks of the table in place, and ending the process where one cannot be.

SGLang's plugin loader logs errors and goes on. A guard that is half in place is worse than none,
so whatever goes wrong here ends the process (see ``sglang_lp.server.install``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pkgutil import resolve_name
from typing import Any

from packaging.version import Version  # comes with SGLang

from sglang_lp.processor import LogitProcessor
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler.gate import NoLoads
from sglang_lp.server.startup import installation
from sglang_lp.server.startup.attributes import has_attribute
from sglang_lp.server.startup.hook_table import ATTRIBUTES, HOOKS, Shared
from sglang_lp.server.startup.installation import policy_in_force, refuse
from sglang_lp.server.versions import check_version

__all__ = ["put_in_place"]


def put_in_place() -> None:
    """Register every hook, and have them checked once SGLang has applied them.

    Raises:
        SglangLpError: An SGLang that is not supported, or a policy that cannot be enforced.
    """
    if installation.installed:
        return
    found = Version(check_version())
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.sampling import custom_logit_processor as stock

    # Closed before anything else can go wrong.
    stock.dill = NoLoads(stock.dill)
    guard = Guard(policy_in_force())
    shared = Shared(guard)
    due = [hook for hook in HOOKS if Version(hook.since) <= found and hook.serves(guard)]
    stock.CustomLogitProcessor.register(LogitProcessor)
    for hook in due:
        made = hook.make(shared)
        HookRegistry.register(hook.target, made, HookType(hook.kind))
        installation.installed.append((hook.target, made))
    installation.guard = guard
    _verify_after(HookRegistry, {hook.target for hook in due if hook.kind == "replace"})


def _verify_after(registry: Any, replaced: Iterable[str]) -> None:
    """Check the whole table once the registry has applied its hooks.

    The registry logs a hook that it cannot apply and goes on, and lets the last of several
    plugins that replace one function win.
    """
    original: Callable[[], None] = registry.apply_hooks

    def apply_hooks() -> None:
        original()
        lost = {target for target, state in installation.status().items() if state != "live"}
        for target in replaced:
            last = [hook for kind, hook, _ in registry._hooks[target] if kind.value == "replace"]  # noqa: SLF001
            if (target, last[-1]) not in installation.installed:
                lost.add(target)
        if lost:
            refuse(f"not in place after SGLang applied its plugins: {', '.join(sorted(lost))}")
        missing = sorted(_missing())
        if missing:
            refuse(f"this SGLang does not have what hooks use: {', '.join(missing)}")

    registry.apply_hooks = apply_hooks


def _missing() -> Iterator[str]:
    """Yield the attributes of the table that SGLang's classes do not have."""
    for owner, names in ATTRIBUTES.items():
        try:
            kind: type = resolve_name(owner)
        except (AttributeError, ImportError):
            yield owner
            continue
        yield from (f"{owner}.{name}" for name in names if not has_attribute(kind, name))
