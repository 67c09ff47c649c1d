"""The allow list: every class that may run, and every piece of code that the operator pinned.

The operator's policy makes it at start-up. Its classes are imported and checked by then, so
nothing that a request sends is ever imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from sglang_lp.errors import PolicyError, RefusalReason, shown

__all__ = [
    "MAX_PINS",
    "MAX_PIN_BYTES",
    "Advice",
    "AllowList",
    "AllowListSource",
    "AllowedClass",
    "Pin",
]

#: Most pinned payloads, and the largest of them: the bound on the memory that they can take.
MAX_PINS = 64
MAX_PIN_BYTES = 65_536

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Pin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One payload that is code, allowed because the operator read that very code.

    Attributes:
        name: Its name in messages and logs.
        sha256: Digest of the decoded pickle, 64 lower-case hex digits.
        size: Size of the decoded pickle in bytes. Pickles of other sizes are not hashed.
    """

    name: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha256):
            raise PolicyError(
                f"sha256: expected 64 lower-case hex digits, got {shown(self.sha256, 70)}"
            )
        if not 1 <= self.size <= MAX_PIN_BYTES:
            raise PolicyError(f"size: expected 1 to {MAX_PIN_BYTES} bytes, got {self.size}")


class AllowedClass(NamedTuple):
    """A class that may run, and the names that requests may use for it.

    Attributes:
        processor: The class itself, imported and checked.
        names: Pairs of module and class name. The verifier accepts the payload by reference of each
            pair, and writes the payload of the first pair in their place.
        short_name: A name without a module that is accepted too, if there is one.
    """

    processor: type
    names: tuple[tuple[str, str], ...]
    short_name: str | None = None


class Advice(NamedTuple):
    """The refusal of a class that the operator's policy has something to say about.

    Attributes:
        reason: Stable code of the refusal.
        todo: What the client can do.
    """

    reason: RefusalReason
    todo: str


class AllowList(NamedTuple):
    """Everything that the operator allows.

    Attributes:
        classes: Classes that may run. A later entry replaces an earlier one of the same name.
        pins: Code that may be unpickled.
        load_pin: Called with a pin and a function that unpickles its code: calls that function, and
            returns the class if it can be served. Raises ``SglangLpError`` otherwise, whatever the
            pinned code raised.
        advice: By module and class name, the refusals of classes that are not allowed.
    """

    classes: tuple[AllowedClass, ...]
    pins: tuple[Pin, ...]
    load_pin: Callable[[Pin, Callable[[], object]], type]
    advice: Mapping[tuple[str, str], Advice]


class AllowListSource(Protocol):
    """Anything that makes an allow list, such as a :class:`~sglang_lp.trust.Policy`."""

    def make_allow_list(self) -> AllowList:
        """Import and check every allowed class.

        Raises:
            PolicyError: An entry cannot be served; the message says which and why.
        """
