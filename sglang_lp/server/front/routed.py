"""Processors that come by the ways which sglang-router leaves open.

It drops ``custom_params`` on ``/generate``, and ``custom_logit_processor`` too on chat and
responses. What it passes on is a text in ``custom_logit_processor`` of ``/generate`` and an entry
of ``metadata`` elsewhere, so either may hold processor and parameters together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_lp import wire
from sglang_lp.server.gate.reserved_keys import ROUTED, add_own

__all__ = ["read_body", "read_responses"]


def read_body(
    converted: tuple[Any, Any], _serving: Any, _request: Any, raw_request: Any = None
) -> None:
    """Keep the entry of ``metadata``, which SGLang's types for chat and completions lack."""
    body = getattr(raw_request, "_json", None)  # where Starlette keeps the body that it parsed
    if isinstance(body, Mapping):
        _keep(converted[0].sampling_params, body.get("metadata"))


def read_responses(sampling: dict[str, Any], request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Keep the same of a response."""
    _keep(sampling, request.metadata)


def _keep(sampling: dict[str, Any], metadata: object) -> None:
    if isinstance(metadata, Mapping) and wire.ENTRY in metadata:
        custom_params = sampling.get("custom_params")
        sampling["custom_params"] = add_own(custom_params, ROUTED, metadata[wire.ENTRY])
