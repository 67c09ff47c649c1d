"""Processors that come by the ways which sglang-router leaves open.

It drops ``custom_params`` on ``/generate``, and ``custom_logit_processor`` too on chat and
responses. What it passes on is a text in ``custom_logit_processor`` of ``/generate`` and an entry
of ``metadata`` elsewhere, so either may hold processor and parameters together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_lp import wire
from sglang_lp.errors import RequestError, Unsupported, shown
from sglang_lp.server.own_keys import ROUTED, add_own, check_origin

__all__ = ["read_body", "read_responses", "unfold"]


def read_body(
    converted: tuple[Any, Any], _serving: Any, _request: Any, raw_request: Any = None
) -> None:
    """Keep the entry of ``metadata``, which SGLang's types for chat and completions lack.

    Stands after ``_convert_to_internal_request`` of both.
    """
    body = getattr(raw_request, "_json", None)  # where Starlette keeps the body that it parsed
    if isinstance(body, Mapping):
        _keep(converted[0].sampling_params, body.get("metadata"))


def read_responses(sampling: dict[str, Any], request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Keep the same: after ``ResponsesRequest.to_sampling_params``."""
    _keep(sampling, request.metadata)


def _keep(sampling: dict[str, Any], metadata: object) -> None:
    if isinstance(metadata, Mapping) and wire.ENTRY in metadata:
        custom_params = sampling.get("custom_params")
        sampling["custom_params"] = add_own(custom_params, ROUTED, metadata[wire.ENTRY])


def unfold(payload: Any, custom_params: Any) -> tuple[Any, Any]:
    """Return the processor and the parameters of a request, whichever way they came.

    Args:
        payload: Its ``custom_logit_processor``, or ``None``.
        custom_params: Its own, with what the hooks here kept in them.

    Returns:
        The payload, still to be checked, and ``custom_params`` for it.

    Raises:
        RequestError: Something is given twice, or a text holds no such thing.
    """
    if isinstance(custom_params, dict) and ROUTED in custom_params:
        if payload is not None:
            raise RequestError(
                f'expected one processor, got one in custom_logit_processor and one in metadata["'
                f'{wire.ENTRY}"]; give it once'
            )
        payload = custom_params[ROUTED]
        custom_params = {key: custom_params[key] for key in custom_params if key != ROUTED}
        if type(payload) is not str:
            raise RequestError(f'metadata["{wire.ENTRY}"]: expected text, got {shown(payload)}')
    payload, params = wire.unfold(payload)
    if params is None:
        return payload, custom_params
    if not isinstance(custom_params, dict | None):
        raise Unsupported(f"custom_params: expected an object, got {shown(custom_params)}")
    check_origin(params)
    given = custom_params or {}
    if twice := given.keys() & params.keys():
        raise RequestError(
            f"{shown(min(twice))} is given twice, in custom_params and beside the processor; give "
            "it once"
        )
    return payload, {**given, **params}
