"""``custom_params`` of a class without a schema: values that SGLang's processes can send."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sglang_lp.errors import RequestError, shown

__all__ = ["read_flat"]

_Scalar = (
    bool
    | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    | Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
    | str
    | None
)
_flat = msgspec.msgpack.Decoder(dict[str, _Scalar | list[_Scalar] | dict[str, _Scalar]])


def read_flat(custom_params: object) -> dict[str, Any]:
    """Return a copy of parameters without a schema, checked to be flat JSON.

    Args:
        custom_params: The parameters of a request, or ``None``. SGLang's ``__req__`` is left out.

    Raises:
        RequestError: Not an object of scalars, flat lists and flat objects; or it has NaN, an
            infinite number, an integer beyond 64 bits, or text that is not Unicode.
    """
    if not isinstance(custom_params, Mapping | None):
        raise RequestError(f"custom_params: expected an object, got {shown(custom_params)}")
    given = {key: value for key, value in (custom_params or {}).items() if key != "__req__"}
    try:
        return _flat.decode(msgspec.msgpack.encode(given))
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        raise RequestError(
            "custom_params: expected an object of finite numbers, integers of 64 bits, text, and "
            f"flat lists and objects of these: {error}"
        ) from error
