"""The routed form: one text that holds processor and parameters together."""

from __future__ import annotations

from typing import Any

from sglang_lp import wire
from sglang_lp.errors import RequestError, shown
from sglang_lp.server.gate.reserved_keys import ROUTED, check_origin

#: The refusal of a request that names a processor in its own field and in ``metadata``.
GIVEN_TWICE = (
    "custom_logit_processor: expected one processor, got another in "
    f'metadata["{wire.ENTRY}"]; give it once'
)


def unfold(payload: Any, custom_params: Any) -> tuple[Any, Any]:
    """Return the processor and the parameters of a request, from whichever field.

    Args:
        payload: Its ``custom_logit_processor``, or ``None``.
        custom_params: The request's ``custom_params``, with the keys that our hooks added.

    Returns:
        The payload, still to be checked, and ``custom_params`` for it.

    Raises:
        RequestError: Something is given twice, or the text is not a routed form.
    """
    if isinstance(custom_params, dict) and ROUTED in custom_params:
        if payload is not None:
            raise RequestError(GIVEN_TWICE)
        payload = custom_params[ROUTED]
        custom_params = {key: custom_params[key] for key in custom_params if key != ROUTED}
        if type(payload) is not str:
            raise RequestError(f'metadata["{wire.ENTRY}"]: expected text, got {shown(payload)}')
    payload, params = wire.unfold(payload)
    if params is None:
        return payload, custom_params
    if not isinstance(custom_params, dict | None):
        raise RequestError(f"custom_params: expected an object, got {shown(custom_params)}")
    check_origin(params)
    given = custom_params or {}
    if twice := given.keys() & params.keys():
        raise RequestError(
            f"custom_params: {shown(min(twice))} is given twice, here and with the processor; "
            "give it once"
        )
    return payload, {**given, **params}
