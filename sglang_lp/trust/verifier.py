"""From a payload to the class that the operator allowed, in one exact lookup.

At start-up the payloads of every allowed class, a handful of fixed strings each, become keys of a
table. A request's payload is looked up there; it is never unpickled, imported or resolved by name,
and it never adds a key.

The one exception is code that the operator pinned by digest. It is unpickled once, after its digest
matched; then its payloads are keys as well. There are as many such classes as pins.
"""

from __future__ import annotations

import hashlib  # noqa: F401 - loads it for wire.digest, because a refusal may import nothing
import logging
import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sglang_lp import wire
from sglang_lp.errors import PayloadRefused, RefusalReason, SglangLpError, shown
from sglang_lp.wire.explain import Kind, describe

if TYPE_CHECKING:
    from sglang_lp.trust.allow_list import AllowListSource, Pin

__all__ = ["MAX_CHARS", "Allowed", "Verifier"]

logger = logging.getLogger(__name__)

#: Longest text that is read for a class by reference: two names of 255 bytes take 1,112
#: characters, the rest is room for white space.
MAX_CHARS = 1280

#: A text that is meant as a name. Only such a text is shown in the refusal.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:]*+")


class Allowed(NamedTuple):
    """One class that may run.

    Attributes:
        name: ``module:Class``, or the name of a pin.
        processor: The class itself.
        payload: The payload that replaces the client's spelling from here on.
    """

    name: str
    processor: type
    payload: str


class Verifier:
    """Looks payloads up among the classes that a policy allows.

    After construction only the first use of pinned code changes it. Several threads may use it.
    """

    def __init__(self, policy: AllowListSource) -> None:
        """Import and check every class that the policy allows.

        Args:
            policy: A :class:`~sglang_lp.trust.Policy`.

        Raises:
            PolicyError: An entry cannot be served; the message says which and why.
        """
        listed = policy.make_allow_list()
        #: Allowed classes by the texts that clients write: names, and payloads in the two usual
        #: spellings.
        self._by_text: dict[str, Allowed] = {}
        #: Allowed classes by the pickle in a payload, for texts with other white space.
        self._by_pickle: dict[bytes, Allowed] = {}
        self._allowed: list[Allowed] = []
        #: Names that clients may write in place of a payload, one for each class.
        self.names: list[str] = []
        for processor, names, short_name in listed.classes:
            module, name = names[0]
            allowed = Allowed(f"{module}:{name}", processor, wire.payload_for(module, name))
            self._allowed.append(allowed)
            self.names.append(short_name or allowed.name)
            if short_name is not None:
                self._by_text[short_name] = allowed
            for module, name in names:
                self._by_text[f"{module}:{name}"] = allowed
                for pickled in wire.references(module, name):
                    self._accept(pickled, allowed)
        self._advice = listed.advice
        self._load = listed.load_pin
        self._pins = {pin.sha256: pin for pin in listed.pins}
        self._pin_sizes = {pin.size for pin in listed.pins}
        self._pin_lengths = {
            len(text) for size in self._pin_sizes for text in wire.spellings(bytes(size))
        }
        self._broken_pins: set[str] = set()
        self._lock = threading.Lock()

    def _accept(self, pickled: bytes, allowed: Allowed) -> None:
        """Accept the payloads of a pickle for an allowed class."""
        self._by_pickle[pickled] = allowed
        for text in wire.spellings(pickled):
            self._by_text[text] = allowed

    @property
    def allowed(self) -> tuple[Allowed, ...]:
        """Classes that may run now, in the order of the policy, then the pins used so far."""
        return tuple(self._allowed)

    def resolve(self, payload: str) -> type:
        """Return the class that a payload is for.

        Args:
            payload: As for :meth:`lookup`.

        Raises:
            PayloadRefused: As :meth:`lookup`.
        """
        return self.lookup(payload).processor

    def lookup(self, payload: str) -> Allowed:
        """Return the class that a payload is for, if the operator allowed it.

        Args:
            payload: The text of a request: the result of ``to_str()``, ``module:Class``, or the
                short name of a built-in. Any object may be passed.

        Raises:
            PayloadRefused: It is not allowed. No other error is ever raised. The work done is
                small and fixed, and nothing of the payload is kept.
        """
        # A subclass of str could bring its own __hash__ and __eq__.
        found = self._by_text.get(payload) if type(payload) is str else None
        return found if found is not None else self._lookup_spelled(payload)

    def pin(self, payload: str) -> Pin | None:
        """Return the pin that would make :meth:`lookup` unpickle a payload; unpickle nothing.

        Args:
            payload: As for :meth:`lookup`.

        Returns:
            The pin, or ``None`` if the payload is known already or refused for another reason.

        Raises:
            PayloadRefused: It is not a payload, or a name that is not allowed.
        """
        if type(payload) is str and payload in self._by_text:
            return None
        pickled = self._decode(payload)
        return None if pickled in self._by_pickle else self._pin_of(pickled)

    def _lookup_spelled(self, payload: Any) -> Allowed:
        """Look up a text that is not a key: other white space, a pin, or refused."""
        pickled = self._decode(payload)
        found = self._by_pickle.get(pickled)
        if found is None:
            pin = self._pin_of(pickled)
            if pin is None:
                self._refuse(pickled, len(payload))
            found = self._pinned(pin, pickled, len(payload))
        return found

    def _decode(self, payload: Any) -> bytes:
        size = len(payload) if type(payload) is str else 0
        if 0 < size <= MAX_CHARS and _NAME.fullmatch(payload):
            _refuse_name(payload)
        return wire.decode(payload, size if size in self._pin_lengths else MAX_CHARS)

    def _pin_of(self, pickled: bytes) -> Pin | None:
        """Return the pin of a pickle; only pickles of a pin's size are hashed."""
        pin = None
        if len(pickled) in self._pin_sizes:
            pin = self._pins.get(wire.digest(pickled))
        return pin if pin is not None and pin.size == len(pickled) else None

    def _pinned(self, pin: Pin, pickled: bytes, size: int) -> Allowed:
        """Return the class of pinned code, which the first call unpickles."""
        with self._lock:
            found = self._by_pickle.get(pickled)
            if found is None and pin.sha256 not in self._broken_pins:
                found = self._load_pin(pin, pickled)
        if found is None:
            raise PayloadRefused(
                f"custom_logit_processor: the pinned payload {pin.sha256[:12]} does not load on "
                "this server; its log says why. Ask the operator to pin a payload made with the "
                "server's versions of Python and dill",
                reason=RefusalReason.BROKEN_PIN,
                digest=pin.sha256,
                size=size,
            )
        return found

    def _load_pin(self, pin: Pin, pickled: bytes) -> Allowed | None:
        """Unpickle code whose digest matched a pin; ``None`` if that fails."""
        import dill

        try:
            # The operator pinned this very code.
            processor = self._load(pin, lambda: dill.loads(pickled))  # noqa: S301
        except SglangLpError as error:
            said = str(error)
        else:
            allowed = Allowed(pin.name, processor, wire.encode(pickled))
            self._allowed.append(allowed)
            self._accept(pickled, allowed)
            return allowed
        self._broken_pins.add(pin.sha256)  # never unpickled again
        logger.error("%s", said)
        return None

    def _refuse(self, pickled: bytes, size: int) -> NoReturn:
        """Refuse a well-formed payload, and say what the client can do."""
        kind, module, name = describe(pickled)
        sha256 = wire.digest(pickled)
        reason = RefusalReason.NOT_A_REFERENCE
        came, todo = kind.value, "send a top-level class of an importable module"
        if kind is Kind.REFERENCE:
            reason = RefusalReason.NOT_ALLOWED
            came = f"the class {shown(f'{module}:{name}', 120)}"
            todo = "ask the operator to allow it in the server's policy"
            reason, todo = self._advice.get((module, name), (reason, todo))
        elif kind is Kind.INSTANCE:
            reason = RefusalReason.INSTANCE
            todo = "send the class: today's to_str() is a class method"
        elif kind is Kind.BY_VALUE:
            reason = RefusalReason.BY_VALUE
            todo = (
                "move the class to a module that is installed on the server and ask the operator "
                "to allow it, or to pin this payload"
            )
        raise PayloadRefused(
            "custom_logit_processor: expected a class that this server allows, got "
            f"{came} ({len(pickled)} bytes, sha256 {sha256[:12]}); {todo}",
            reason=reason,
            digest=sha256,
            size=size,
        )


def _refuse_name(payload: str) -> NoReturn:
    raise PayloadRefused(
        "custom_logit_processor: expected what a processor's to_str() returns, or the name of a "
        f"class that this server allows, got {shown(payload)}; correct the name, or ask the "
        "operator to allow it",
        reason=RefusalReason.UNKNOWN_NAME,
        size=len(payload),
    )
