"""Putting the hooks of the table in place, and ending the process where one cannot be.

SGLang's plugin loader logs errors and goes on. A guard that is half in place is worse than none,
so whatever goes wrong here ends the process (see ``sglang_lp.server.install``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from packaging.version import Version  # comes with SGLang

from sglang_lp.processor import LogitProcessor
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler.gate import NoLoads
from sglang_lp.server.startup import installation
from sglang_lp.server.startup.attribute_table import ATTRIBUTES
from sglang_lp.server.startup.attributes import has_attribute
from sglang_lp.server.startup.hook_table import HOOKS, Shared
from sglang_lp.server.startup.installation import policy_in_force, refuse
from sglang_lp.server.startup.signatures import misread
from sglang_lp.server.versions import check_version

if TYPE_CHECKING:
    from sglang_lp.server.startup.attribute_table import Uses
    from sglang_lp.server.startup.hook_table import Hook


def put_in_place() -> None:
    """Register every hook, and have them checked once SGLang has applied them.

    Raises:
        SglangLpError: An SGLang that is not supported, or a policy that cannot be enforced.
    """
    if installation.installed:
        return
    found = check_version()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.sampling import custom_logit_processor as stock

    # Closed before anything else can go wrong.
    stock.dill = NoLoads(stock.dill)
    guard = Guard(policy_in_force())
    shared = Shared(guard)
    due = {hook: hook.make(shared) for hook in HOOKS if _is_due(hook, found) and hook.serves(guard)}
    stock.CustomLogitProcessor.register(LogitProcessor)
    for hook, made in due.items():
        HookRegistry.register(hook.target, made, HookType(hook.kind))
        installation.installed.append((hook.target, made))
    installation.guard = guard
    _verify_after(HookRegistry, due, found)


def _is_due(entry: Hook | Uses, found: str) -> bool:
    """Tell whether an entry of a table is meant for an SGLang of this version."""
    version = Version(found)
    return Version(entry.since) <= version and (
        entry.until is None or version <= Version(entry.until)
    )


def _verify_after(registry: Any, due: Mapping[Hook, Any], found: str) -> None:
    """Check both tables once the registry has applied its hooks.

    The registry logs a hook that it cannot apply and goes on, and lets the last of several
    plugins that replace one function win.
    """
    original: Callable[[], None] = registry.apply_hooks

    def apply_hooks() -> None:
        original()
        lost = {target for target, state in installation.status().items() if state != "live"}
        for target in {hook.target for hook in due if hook.kind == "replace"}:
            last = [hook for kind, hook, _ in registry._hooks[target] if kind.value == "replace"]  # noqa: SLF001
            if (target, last[-1]) not in installation.installed:
                lost.add(target)
        if lost:
            refuse(f"not in place after SGLang applied its plugins: {_listed(lost)}")
        misread = {*_misread(due)}
        if misread:
            refuse(
                f"SGLang {found} calls functions in another way than hooks read them, here with "
                f"the parameters that differ: {_listed(misread)}"
            )
        missing = {*_missing(found)}
        if missing:
            refuse(f"SGLang {found} does not have what hooks use: {_listed(missing)}")

    registry.apply_hooks = apply_hooks


def _misread(due: Mapping[Hook, Any]) -> Iterator[str]:
    """Yield the functions whose hooks do not read them as SGLang calls them, with parameters."""
    for hook, made in due.items():
        if differing := ", ".join(misread(made, hook.kind, hook.target)):
            yield f"{hook.target} ({differing})"


def _missing(found: str) -> Iterator[str]:
    """Yield the attributes of the table that SGLang's classes do not have."""
    for uses in ATTRIBUTES:
        if not _is_due(uses, found):
            continue
        try:
            kind: type = resolve_name(uses.owner)
        except (AttributeError, ImportError):
            yield uses.owner
            continue
        yield from (f"{uses.owner}.{name}" for name in uses.names if not has_attribute(kind, name))


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))
