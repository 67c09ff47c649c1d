"""Processors of other engines that the operator allows: the ``[[adapt]]`` tables of a policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgspec

from sglang_lp.adapters import INTERFACES, AdaptedProcessor, adapt, find_entry_points, load
from sglang_lp.errors import PolicyError, shown
from sglang_lp.importing import parse_entry


class Adapt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One class of another engine.

    Attributes:
        name: ``module:Class``; the key is ``class``. Either this or ``entry_point``.
        entry_point: Name of an installed entry point in one of ``adapters.GROUPS``.
        interface: The interface that the class implements; found out if left out.
        arguments: Arguments of its constructor that no request can change.
        generation_only: Whether servers that only prefill for others leave it out.
        limits: The largest number that a request may give, by the name of a parameter.
    """

    name: str | None = msgspec.field(name="class", default=None)
    entry_point: str | None = None
    interface: str | None = None
    arguments: dict[str, Any] = {}
    generation_only: bool = False
    limits: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}

    def __post_init__(self) -> None:
        if (self.name is None) == (self.entry_point is None):
            raise PolicyError("expected either class or entry_point")
        if self.name is not None:
            parse_entry(self.name, "class")
        if self.interface is not None and self.interface not in INTERFACES:
            raise PolicyError(
                f"interface: expected one of {', '.join(INTERFACES)}, got {shown(self.interface)}"
            )


class Adapted(NamedTuple):
    """A class of another engine, adapted.

    Attributes:
        names: Pairs of module and name that payloads may carry: the policy's, and the class's own.
        processor: The adapter that runs it.
    """

    names: list[tuple[str, str]]
    processor: type[AdaptedProcessor]


def adapt_all(entries: tuple[Adapt, ...]) -> Iterator[Adapted]:
    """Import, check and adapt the classes of a policy.

    Raises:
        PolicyError: A class cannot be served; the message says which and why.
    """
    for index, entry in enumerate(entries):
        where = f"adapt[{index}]"
        module, name = _named(entry, where)
        found = load(module, name, where)
        try:
            processor = adapt(
                found,
                entry.interface,
                entry.arguments,
                generation_only=entry.generation_only,
                limits=entry.limits,
            )
        except PolicyError as error:
            raise PolicyError(f"{where}: {error}") from error
        own = found.__module__, found.__qualname__
        yield Adapted([*dict.fromkeys([(module, name), own])], processor)


def _named(entry: Adapt, where: str) -> tuple[str, str]:
    """Return the module and name of an entry's class or function."""
    if entry.name is not None:
        return parse_entry(entry.name)
    installed = find_entry_points()
    found = installed.get(entry.entry_point or "")
    if found is None:
        raise PolicyError(
            f"{where}: entry_point: {shown(entry.entry_point)} is not installed; "
            f"installed are: {', '.join(sorted(installed)) or 'none'}"
        )
    return parse_entry(found.value, f"{where}: entry_point {found.name}")
