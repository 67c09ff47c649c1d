"""What one HTTP request may carry in ``custom_params``, whatever its processors."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from sglang_lp.errors import RequestError, Unsupported

__all__ = ["MAX_ENTRIES", "check_entries", "check_flat", "entries"]

#: Most entries of list parameters in one HTTP request, over all of its texts and copies: eight
#: lists of the greatest length.
MAX_ENTRIES = 524_288

_Scalar = (
    bool
    | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    | Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
    | str
    | None
)
_flat = msgspec.msgpack.Decoder(dict[str, _Scalar | list[_Scalar] | dict[str, _Scalar]])


def check_flat(custom_params: object) -> None:
    """Check what has no schema: SGLang's own type, and nothing that cannot travel.

    Args:
        custom_params: Of a request, or ``None``. SGLang's ``__req__`` is left out.

    Raises:
        RequestError: Not an object of scalars, flat lists and flat objects, or NaN, an infinite
            number, an integer beyond 64 bits or text that is not Unicode in it.
    """
    given = custom_params or {}
    if isinstance(given, dict):
        given = {key: value for key, value in given.items() if key != "__req__"}
    try:
        _flat.decode(msgspec.msgpack.encode(given))
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        raise Unsupported(
            "custom_params: expected an object of finite numbers, integers of 64 bits, text, and "
            f"flat lists and objects of these: {error}"
        ) from error


def entries(custom_params: object) -> int:
    """Return how many entries the lists of one request have."""
    if not isinstance(custom_params, dict):
        return 0
    return sum(len(value) for value in custom_params.values() if isinstance(value, list | dict))


def check_entries(counts: Iterable[int], copies: int = 1) -> None:
    """Check how much the requests list that came as one HTTP request.

    Args:
        counts: Of each text, what :func:`entries` returned.
        copies: Of each text (``n``).

    Raises:
        RequestError: More than ``MAX_ENTRIES`` in all.
    """
    total = copies * sum(counts)
    if total > MAX_ENTRIES:
        raise RequestError(
            f"custom_params: expected at most {MAX_ENTRIES} entries in the lists of one HTTP "
            f"request, got {total} over all of its texts and copies (n); send several requests"
        )
