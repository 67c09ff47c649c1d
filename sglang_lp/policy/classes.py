"""The import and the check of a class that the operator named or pinned."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sglang_lp import wire
from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.errors import PolicyError, shown
from sglang_lp.faults import as_fault
from sglang_lp.importing import import_named
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.trust.allow_list import Pin

#: A processor of this toolkit overrides at least one of these methods.
_WORK = ("edit", "__call__", "serving")


def load(module: str, name: str, where: str) -> type:
    """Import one allowed class and check it. Only ever called with the operator's names.

    Args:
        module: Module to import.
        name: Name of the class in it.
        where: Place in the policy, for the message.

    Returns:
        The class, which pickles by reference to exactly these two names.

    Raises:
        PolicyError: It cannot be imported, is not a processor, cannot be made without arguments,
            or does not pickle by reference to these names.
    """
    entry = f"{where}: {module}:{name}"
    cls = check(import_named(module, name, where), entry)
    if (cls.__module__, cls.__qualname__) != (module, name):
        raise PolicyError(
            f"{entry}: is the class {cls.__module__}:{cls.__qualname__} under another name; "
            "allow it under its own, which is what payloads carry"
        )
    if pickle.dumps(cls) not in wire.references(module, name):
        raise PolicyError(
            f"{entry}: expected a class that pickles by reference; "
            "a copyreg reducer of its metaclass makes something else of it"
        )
    return cls


def load_pin(pin: Pin, unpickle: Callable[[], object]) -> type:
    """Check the class of pinned code.

    Args:
        pin: The pin.
        unpickle: Unpickles the code.

    Raises:
        SglangLpError: The code raised, or its class cannot be served.
        BaseException: A signal interrupted it.
    """
    try:
        return check(unpickle(), f"pin {pin.name}")
    except BaseException as error:  # noqa: BLE001 - the pinned code may raise anything
        raise as_fault(f"the pinned payload {shown(pin.name)}", "to load", error) from None


def check(found: object, where: str) -> type:
    """Check that an object is a class of processors that a server can make and call.

    Args:
        found: The object.
        where: Its name in the message.

    Returns:
        The same object.

    Raises:
        PolicyError: It is not.
    """
    if not isinstance(found, type):
        raise PolicyError(f"{where}: expected a class, got {shown(type(found).__name__)}")
    cls: Any = found  # type() promises neither __abstractmethods__ nor a constructor
    call = next((vars(base)["__call__"] for base in cls.__mro__ if "__call__" in vars(base)), None)
    if not callable(call):
        raise PolicyError(
            f"{where}: expected a logit processor, a class with "
            "__call__(self, logits, custom_param_list); "
            "derive it from sglang_lp.processor.LogitProcessor"
        )
    try:
        inspect.signature(call).bind(None, None, None)
    except (TypeError, ValueError) as error:
        raise PolicyError(
            f"{where}: expected __call__(self, logits, custom_param_list), "
            f"but it cannot be called so: {error}"
        ) from error
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise PolicyError(f"{where}: expected a concrete class; it does not override {missing}")
    works = issubclass(cls, LogitProcessor) and not issubclass(cls, ChainLogitProcessor)
    if works and all(getattr(cls, name) is getattr(LogitProcessor, name) for name in _WORK):
        raise PolicyError(
            f"{where}: expected a class that does something; it overrides neither edit() nor "
            "__call__()"
        )
    try:
        cls()
    except (Exception, SystemExit) as error:
        raise PolicyError(
            f"{where}: expected a class that can be made without arguments, as SGLang does: "
            f"{type(error).__name__}: {error}"
        ) from error
    return found
