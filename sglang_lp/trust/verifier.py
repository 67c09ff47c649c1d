"""From a payload to the class that the operator allowed, in one exact lookup.

At start-up every allowed class is imported and its payloads, which are a handful of fixed strings,
become keys. A request is looked up; it is never unpickled, imported or resolved by name, and it
never adds a key. The one exception is code that the operator pinned by digest: it is unpickled
once, after its digest matched, and then has its own keys, of which there are as many as pins.
"""

from __future__ import annotations

import hashlib  # noqa: F401 - loads it for wire.digest, because a refusal may import nothing
import importlib
import logging
import re
import threading
from typing import Any, NamedTuple, NoReturn

from sglang_lp import wire
from sglang_lp.errors import PayloadRefused, PolicyError, RefusalReason, shown
from sglang_lp.faults import as_fault
from sglang_lp.policy import classes
from sglang_lp.policy.adapt import adapt_all
from sglang_lp.policy.file import Pin, Policy, Stock, parse_entry

__all__ = ["MAX_CHARS", "Allowed", "Verifier"]

logger = logging.getLogger(__name__)

#: Longest text that is read for a class by reference: two names of 255 bytes take 1,112
#: characters, the rest is room for white space.
MAX_CHARS = 1280

#: What may be meant as a name and is therefore shown back.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:]*+")

_BUILTINS = "sglang_lp.builtins"
_STOCK = "sglang.srt.sampling.custom_logit_processor"
#: SGLang's own processors, which are built-ins under the same names. Its
#: ThinkingBudgetLogitProcessor is a base without token ids and fails on the first call.
_STOCK_CLASSES = (
    (_STOCK, "DeepSeekR1ThinkingBudgetLogitProcessor"),
    (_STOCK, "DeepseekOCRNoRepeatNGramLogitProcessor"),
    (_STOCK, "DisallowedTokensLogitsProcessor"),
    (_STOCK, "Glm4MoeThinkingBudgetLogitProcessor"),
    (_STOCK, "InklingThinkingBudgetLogitProcessor"),
    (_STOCK, "Qwen3ThinkingBudgetLogitProcessor"),
)
_STOCK_BASE = "ThinkingBudgetLogitProcessor"
#: Those that come with the file of a model. With ``stock = "allow"`` the operator allows such a
#: class by its name, because not every server has the model.
_MODEL_CLASSES = (("sglang.srt.models.locate_anything", "LocateAnythingBoxGrammarLogitProcessor"),)


class Allowed(NamedTuple):
    """One class that may run.

    Attributes:
        name: ``module:Class``, or the name of a pin.
        processor: The class itself.
        payload: The one text that stands for it from here on, whatever the client's spelling.
    """

    name: str
    processor: type
    payload: str


class Verifier:
    """Looks payloads up among what a policy allows.

    Immutable after construction but for pinned code that is seen for the first time. Safe to use
    from several threads.
    """

    def __init__(self, policy: Policy) -> None:
        """Import and check every class that the policy allows.

        Raises:
            PolicyError: An entry cannot be served; says which and why.
        """
        self._policy = policy
        #: From every accepted text that is the same each time it is written.
        self._by_text: dict[str, Allowed] = {}
        #: From the pickle in it, for texts with other white space.
        self._by_pickle: dict[bytes, Allowed] = {}
        self._allowed: list[Allowed] = []
        self._pins = {pin.sha256: pin for pin in policy.pin}
        self._pin_sizes = {pin.size for pin in policy.pin}
        self._pin_lengths = {
            len(text) for size in self._pin_sizes for text in wire.spellings(bytes(size))
        }
        self._broken_pins: set[str] = set()
        self._lock = threading.Lock()
        try:
            self._fill(policy)
        except PolicyError as error:
            raise PolicyError(f"policy {policy.source}: {error}") from error

    def _fill(self, policy: Policy) -> None:
        if policy.builtins:
            for name in importlib.import_module(_BUILTINS).__all__:
                self._by_text[name] = self._allow(
                    _BUILTINS, name, classes.load(_BUILTINS, name, "builtins")
                )
        if policy.stock != Stock.DENY:
            upgrade = policy.stock == Stock.UPGRADE
            for module, name in _STOCK_CLASSES + (_MODEL_CLASSES if upgrade else ()):
                source = _BUILTINS if upgrade else module
                upgraded = self._by_text.get(f"{source}:{name}")
                if upgraded is None:
                    self._allow(module, name, classes.load(source, name, "stock"))
                else:
                    self._accept(module, name, upgraded)
        for index, entry in enumerate(policy.allow):
            where = f"allow[{index}]"
            module, name = parse_entry(entry)
            if module == _STOCK:
                raise PolicyError(
                    f'{where}: SGLang\'s own processors are allowed together, by stock = "allow"'
                )
            self._allow(module, name, classes.load(module, name, where))
        self._fill_adapted(policy)

    def _fill_adapted(self, policy: Policy) -> None:
        for names, processor in adapt_all(policy.adapt):
            for module, name in names:
                if f"{module}:{name}" in self._by_text:
                    raise PolicyError(f"adapt: {module}:{name} is allowed already")
            (module, name), *aliases = names
            allowed = self._allow(module, name, processor)
            for module, name in aliases:
                self._accept(module, name, allowed)

    def _allow(self, module: str, name: str, processor: type) -> Allowed:
        allowed = Allowed(f"{module}:{name}", processor, wire.payload_for(module, name))
        self._allowed.append(allowed)
        self._accept(module, name, allowed)
        return allowed

    def _accept(self, module: str, name: str, allowed: Allowed) -> None:
        """Accept the payloads of a class by reference as standing for an allowed one."""
        self._by_text[f"{module}:{name}"] = allowed
        for pickled in wire.references(module, name):
            self._add(pickled, allowed)

    def _add(self, pickled: bytes, allowed: Allowed) -> None:
        self._by_pickle[pickled] = allowed
        for text in wire.spellings(pickled):
            self._by_text[text] = allowed

    @property
    def allowed(self) -> tuple[Allowed, ...]:
        """Everything that may run now, in the order of the policy; of pins those seen so far."""
        return tuple(self._allowed)

    def resolve(self, payload: str) -> type:
        """Return the class that a payload stands for.

        Args:
            payload: As for :meth:`lookup`.

        Raises:
            PayloadRefused: As :meth:`lookup`.
        """
        return self.lookup(payload).processor

    def lookup(self, payload: str) -> Allowed:
        """Return what a payload stands for, if the operator allowed it.

        Args:
            payload: The text of a request: what ``to_str()`` returns, ``module:Class``, or the
                short name of a built-in. Any object may be passed.

        Raises:
            PayloadRefused: It is not allowed. Nothing else is ever raised. The work done is
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
            PayloadRefused: It is no payload at all, or a name that is not allowed.
        """
        if type(payload) is str and payload in self._by_text:
            return None
        pickled = self._decode(payload)
        return None if pickled in self._by_pickle else self._pin_of(pickled)

    def _lookup_spelled(self, payload: Any) -> Allowed:
        """Look up a text that is no key itself: other white space, a pin, or to be refused."""
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
        """Find the pin of a pickle, hashing only what has a pin's size."""
        pin = None
        if len(pickled) in self._pin_sizes:
            pin = self._pins.get(wire.digest(pickled))
        return pin if pin is not None and pin.size == len(pickled) else None

    def _pinned(self, pin: Pin, pickled: bytes, size: int) -> Allowed:
        """Unpickle code whose digest the operator pinned, once."""
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
        import dill

        try:
            processor = dill.loads(pickled)  # noqa: S301 - the operator pinned this very code
            classes.check(processor, f"pin {pin.name}")
        except BaseException as error:  # noqa: BLE001 - the pinned code may raise anything
            fault = as_fault(f"the pinned payload {shown(pin.name)}", "to load", error)
        else:
            allowed = Allowed(pin.name, processor, wire.encode(pickled))
            self._allowed.append(allowed)
            self._add(pickled, allowed)
            return allowed
        # Neither retried nor unpickled twice: the next attempt finds it here.
        self._broken_pins.add(pin.sha256)
        logger.error("%s", fault)
        return None

    def _refuse(self, pickled: bytes, size: int) -> NoReturn:
        """Refuse a well-formed payload, and say what to do about it."""
        kind, module, name = wire.describe(pickled)
        sha256 = wire.digest(pickled)
        reason = RefusalReason.NOT_A_REFERENCE
        came, todo = kind.value, "send a top-level class of an importable module"
        if kind is wire.Kind.REFERENCE:
            reason = RefusalReason.NOT_ALLOWED
            came = f"the class {shown(f'{module}:{name}', 120)}"
            todo = "ask the operator to allow it in the server's policy"
            if module == _STOCK and name == _STOCK_BASE:
                todo = (
                    "it is a base class without token ids: use the class of your model, "
                    f"or {_BUILTINS}:{_STOCK_BASE}, which takes them as parameters"
                )
            elif self._policy.stock == Stock.DENY and (module, name) in (
                *_STOCK_CLASSES,
                *_MODEL_CLASSES,
            ):
                reason = RefusalReason.DENIED
                todo = f"use the class of the same name in {_BUILTINS}"
        elif kind is wire.Kind.INSTANCE:
            reason = RefusalReason.INSTANCE
            todo = "send the class: today's to_str() is a class method"
        elif kind is wire.Kind.BY_VALUE:
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
