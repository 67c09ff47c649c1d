"""The list of what clients may ask for: ``GET /sglang_lp``.

It has the processors and profiles that a request may name, never those of ``[[always]]``.
SGLang's ``--api-key`` protects it as it protects ``/generate``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from sglang_lp.adapters.adapted import AdaptedProcessor
from sglang_lp.processor import LogitProcessor
from sglang_lp.wire.names import LIST_PATH

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard


def list_allowed(guard: Guard) -> dict[str, Any]:
    """Return the processors and profiles that a request may name, with their parameters.

    Args:
        guard: The guard of this process, which has learned about its server.
    """
    return {
        # Whether SGLang calls processors: --enable-custom-logit-processor.
        "enabled": guard.server.runs_processors,
        "version": version("sglang-lp"),
        "sglang": version("sglang"),
        "policy": guard.fingerprint,
        # By the names that requests may write. Code that is pinned has none, and would appear
        # with its first request.
        "processors": [
            _describe(name, one.processor)
            for name, one in zip(guard.verifier.names, guard.verifier.allowed, strict=False)
        ],
        "profiles": [
            {"name": name, "may_set": [*profile.may_set]}
            for name, profile in guard.policy.profiles.items()
        ],
    }


def _describe(name: str, kind: type) -> dict[str, Any]:
    if not issubclass(kind, LogitProcessor) or issubclass(kind, AdaptedProcessor):
        return {"name": name, "parameters": None}  # a class without a schema
    fields = msgspec.structs.fields(kind.Params)
    return {
        "name": name,
        "parameters": [{"name": field.name, "required": field.required} for field in fields],
    }


def add_list(app: Any, guard: Guard, is_guarded: Callable[[], bool]) -> None:
    """Add the endpoint to SGLang's HTTP app.

    Args:
        app: SGLang's app.
        guard: The guard of this process.
        is_guarded: Tells whether every hook is live. If one is lost, the endpoint answers with
            HTTP 503.
    """
    from starlette.responses import JSONResponse

    listed = cache(lambda: list_allowed(guard))  # takes milliseconds, and never changes

    async def answer(_request: Any) -> JSONResponse:
        guarded = is_guarded()
        body = {"guarded": guarded, **listed()}
        return JSONResponse(body, status_code=200 if guarded else 503)

    app.add_route(LIST_PATH, answer, methods=["GET"])
