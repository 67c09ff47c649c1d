"""The list of what clients may ask for: ``GET /sglang_lp``.

It has the processors and profiles that a request may name, never those of ``[[always]]``.
SGLang's ``--api-key`` protects it as it protects ``/generate``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from sglang_lp import builtins
from sglang_lp.adapters.adapted import AdaptedProcessor
from sglang_lp.processor import LogitProcessor
from sglang_lp.wire.names import LIST_PATH

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard
    from sglang_lp.trust import Allowed


def list_allowed(guard: Guard) -> dict[str, Any]:
    """Return the processors and profiles that a request may name, with their parameters.

    Args:
        guard: Of this process.
    """
    return {
        "version": version("sglang-lp"),
        "sglang": version("sglang"),
        "policy": guard.fingerprint,
        "processors": [_describe(one) for one in guard.verifier.allowed],
        "profiles": [
            {"name": name, "may_set": [*profile.may_set]}
            for name, profile in guard.policy.profiles.items()
        ],
    }


def _describe(one: Allowed) -> dict[str, Any]:
    name = one.name.removeprefix(f"{builtins.__name__}:")
    kind = one.processor
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
        guard: Of this process.
        is_guarded: Tells whether every hook is live. If one is lost, the endpoint answers with
            HTTP 503.
    """
    from starlette.responses import JSONResponse

    async def answer(_request: Any) -> JSONResponse:
        guarded = is_guarded()
        body = {"guarded": guarded, **list_allowed(guard)}
        return JSONResponse(body, status_code=200 if guarded else 503)

    app.add_route(LIST_PATH, answer, methods=["GET"])
