"""vLLM's ``vllm_xargs`` in the body of a chat or a completion: parameters of a processor.

SGLang's types of these bodies have no such field and drop it, so it is read where the body is
still whole, before SGLang turns it into its own form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_lp.adapters.vllm_xargs import merge_xargs
from sglang_lp.server.gate.reserved_keys import add_given

__all__ = ["read_xargs"]


def read_xargs(_serving: Any, request: Any, raw_request: Any = None) -> None:
    """Put them into ``custom_params``, before a front end makes its own form of the body.

    Args:
        request: SGLang's form of the body.
        raw_request: The HTTP request.

    Raises:
        RequestError: No object of parameters, or one that ``custom_params`` has, too.
    """
    body = getattr(raw_request, "_json", None)  # where Starlette keeps the body that it parsed
    given = body.get("vllm_xargs") if isinstance(body, Mapping) else None
    if given is None:
        return
    known = request.custom_params or {}
    request.custom_params = add_given(known, merge_xargs({**known, "vllm_xargs": given}))
