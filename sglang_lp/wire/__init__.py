"""SGLang's wire format for processors, written and read without unpickling anything.

- ``payload``: the text of a payload, the pickle in it, and the exact bytes of a class by reference.
- ``explain``: the explanation of a pickle, for messages; imported when it is first used, because
  clients never explain.
- ``routed``: the form that holds processor and parameters in one text.
- ``names``: names of headers, of metadata and of the report.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sglang_lp.wire.names import ENTRY
from sglang_lp.wire.payload import (
    CANONICAL_PROTOCOL,
    PROTOCOLS,
    decode,
    digest,
    encode,
    payload_for,
    reference_pickle,
    references,
    spellings,
)
from sglang_lp.wire.routed import MAX_WHOLE, fold, unfold

if TYPE_CHECKING:
    from sglang_lp.wire.explain import Description, Kind, describe, opcodes

__all__ = [
    "CANONICAL_PROTOCOL",
    "ENTRY",
    "MAX_WHOLE",
    "PROTOCOLS",
    "Description",
    "Kind",
    "decode",
    "describe",
    "digest",
    "encode",
    "fold",
    "opcodes",
    "payload_for",
    "reference_pickle",
    "references",
    "spellings",
    "unfold",
]


def __getattr__(name: str) -> Any:
    if name in {"Description", "Kind", "describe", "opcodes"}:
        return getattr(import_module("sglang_lp.wire.explain"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
