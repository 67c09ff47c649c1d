"""Rules of fields that a server may not drop silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hunt.dropping import BUDGETS, FIELD, GENERATING, MISSPELLED, PROCESSOR

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.rules.told import Found
    from hunt.servers import Kind


def nothing_is_dropped(asked: Asked, _kind: Kind) -> Found:
    """A processor that a request names runs, or the request is refused; so is a misspelled name."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        if reply.status != 200 or sent.path not in GENERATING or [*reply.errors()]:
            continue
        for name, value in _entries(sent.body):
            if name in MISSPELLED and value:
                yield sent.path, f"{name} is dropped"
            elif name == FIELD and value == PROCESSOR:
                header = reply.headers.get("x-sglang-lp", "")
                if PROCESSOR not in header:
                    yield sent.path, f"{PROCESSOR} is dropped: the header is {header!r}"
            elif name in BUDGETS and name in sent.odd:
                yield sent.path, f"{name} of {value!r} is dropped"


def _entries(body: Any) -> Iterator[tuple[str, Any]]:
    """Yield the entries of a body and of the objects in it."""
    if isinstance(body, Mapping):
        yield from body.items()
        for one in body.values():
            yield from _entries(one)
