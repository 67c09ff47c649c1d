"""The routed form: one text that holds a processor and its parameters.

It is ``{"processor": "<payload or name>", "params": {...}}``, for routers and gateways that drop
``custom_params``.
"""

from __future__ import annotations

from typing import Any

import orjson

from sglang_lp.errors import PayloadRefused, RefusalReason

__all__ = ["MAX_WHOLE", "fold", "unfold"]

#: Longest routed form that is read, in characters: room for the longest list of token ids.
MAX_WHOLE = 1 << 20


def fold(payload: str, params: dict[str, Any]) -> str:
    """Return the routed form of a processor and its parameters.

    Args:
        payload: A payload text, or the name of a class or profile that the server knows.
        params: JSON values.
    """
    return orjson.dumps({"processor": payload, "params": params}).decode()


def unfold(text: Any) -> tuple[Any, dict[str, Any] | None]:
    """Split a routed form; return any other value as it is.

    Args:
        text: The value that a request has in place of a payload. Any object may be passed.

    Returns:
        The payload, still to be checked, and its parameters; ``None`` if it has none.

    Raises:
        PayloadRefused: ``TOO_LARGE`` or ``MALFORMED``.
    """
    if type(text) is not str or '"processor"' not in text:
        return text, None
    size = len(text)
    if size > MAX_WHOLE:
        raise PayloadRefused(
            f"custom_logit_processor: expected at most {MAX_WHOLE} characters of processor and "
            f"parameters together, got {size}",
            reason=RefusalReason.TOO_LARGE,
            size=size,
        )
    try:
        whole = orjson.loads(text)
    except orjson.JSONDecodeError:
        whole = None
    if type(whole) is dict and whole.keys() == {"processor", "params"}:
        payload, params = whole["processor"], whole["params"]
        if type(payload) is str and type(params) is dict:
            return payload, params
    raise PayloadRefused(
        'custom_logit_processor: expected {"processor": "<payload or name>", "params": {...}} with '
        f"these two keys and no other, got {size} characters of something else; "
        "a processor without parameters is sent as its payload or name alone",
        reason=RefusalReason.MALFORMED,
        size=size,
    )
