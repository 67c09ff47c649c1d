"""SGLang's ``to_str`` and ``from_str``: a class as payload text, and back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

from sglang_lp import wire
from sglang_lp.errors import PayloadRefused, RefusalReason

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["find_class", "serialize", "subclasses_of"]

T = TypeVar("T")


def serialize(cls: type) -> str:
    """Return ``{"callable": "<hex of dill.dumps(cls)>"}``.

    Args:
        cls: The class. It travels as its name if it can be imported, otherwise as code.
    """
    if _is_importable(cls):
        return wire.payload_for(cls.__module__, cls.__qualname__)
    import dill

    return wire.encode(dill.dumps(cls))


def find_class(base: type[T], payload: str) -> type[T]:
    """Return the existing class that a payload names; nothing is imported.

    Args:
        base: The class or a base of it.
        payload: A payload of :func:`serialize`.

    Raises:
        PayloadRefused: Neither ``base`` nor a subclass of it has this payload.
    """
    for cls in subclasses_of(base):
        if _is_importable(cls) and serialize(cls) == payload:
            return cls
    raise PayloadRefused(
        f"expected the payload of {base.__name__} or of a subclass of it that is imported; "
        "resolve other payloads with sglang_lp.trust.Verifier",
        reason=RefusalReason.NOT_ALLOWED,
    )


def subclasses_of(cls: type[T]) -> Iterator[type[T]]:
    """Yield a class and every imported class that derives from it."""
    yield cls
    for subclass in cls.__subclasses__():
        yield from subclasses_of(subclass)


def _is_importable(cls: type) -> bool:
    module, name = cls.__module__, cls.__qualname__
    return (
        module != "__main__"
        and "." not in name
        and getattr(sys.modules.get(module), name, None) is cls
    )
