"""Thinking budgets in the fields that clients of other engines send.

SGLang's types drop these fields in silence. They are read where the body is still whole, and kept
in ``custom_params`` under a key that no client can send. What they mean is decided by the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.errors import RequestError, shown
from sglang_lp.params import MAX_INT
from sglang_lp.server.gate.reserved_keys import BUDGET_FIELD, ROUTED, add_own

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard

__all__ = ["find_budget", "make_keep_budget", "make_read_budget", "make_read_responses"]

#: The fields, in the order in which they count: Qwen's and SGLang's clients, vLLM's and Dynamo's,
#: llama.cpp's, OpenRouter's, Anthropic's.
_FIELDS = (
    ("thinking_budget",),
    ("thinking_token_budget",),
    ("thinking_budget_tokens",),
    ("reasoning", "max_tokens"),
    ("thinking", "budget_tokens"),
)
#: Attribute of SGLang's form of a response, which has no field for any of this.
_KEPT = "sglang_lp_budget"


def find_budget(body: object) -> int | None:
    """Return the thinking budget in the body of a request; ``None`` if it has none.

    Raises:
        RequestError: It is no number of tokens.
    """
    for path in _FIELDS:
        value = body
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None or _is_off(body, path):
            continue
        if type(value) is not int or value > MAX_INT:
            raise RequestError(
                f"{'.'.join(path)}: expected a whole number of tokens, got {shown(value)}; give "
                "one, or leave it out"
            )
        return value
    return None


def _is_off(body: Any, path: tuple[str, ...]) -> bool:
    return path[0] == "thinking" and body["thinking"].get("type") == "disabled"


def make_read_budget(guard: Guard) -> Any:
    """Return the hook before SGLang turns a chat or a completion into its own form."""

    def read_budget(serving: Any, request: Any, raw_request: Any = None) -> None:
        budget = find_budget(getattr(raw_request, "_json", None))
        if budget is None or not _runs_processors(serving):
            return
        request.custom_params = add_own(request.custom_params, BUDGET_FIELD, budget)
        if guard.rules.is_empty and request.custom_logit_processor is None:
            request.custom_logit_processor = ThinkingBudgetLogitProcessor.__name__

    return read_budget


def make_keep_budget() -> Any:
    """Return the hook before SGLang serves a response, whose type drops the fields."""

    def keep_budget(serving: Any, request: Any, raw_request: Any = None) -> None:
        try:
            budget = find_budget(getattr(raw_request, "_json", None))
        except RequestError as error:  # which SGLang answers with HTTP 500 from here
            from fastapi import HTTPException

            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from None
        if budget is not None and _runs_processors(serving):
            object.__setattr__(request, _KEPT, budget)  # which the type's own would refuse

    return keep_budget


def make_read_responses(guard: Guard) -> Any:
    """Return the hook after SGLang has made sampling parameters of a response."""

    def read_responses(sampling: dict[str, Any], request: Any, *_args: Any, **_kwargs: Any) -> None:
        budget = getattr(request, _KEPT, None)
        if budget is None:
            return
        given = add_own(sampling.get("custom_params"), BUDGET_FIELD, budget)
        if guard.rules.is_empty:
            given = add_own(given, ROUTED, ThinkingBudgetLogitProcessor.__name__)
        sampling["custom_params"] = given

    return read_responses


def _runs_processors(serving: Any) -> bool:
    """Tell whether this server runs processors; one that does not is SGLang's own business."""
    settings = serving.tokenizer_manager.server_args
    return bool(getattr(settings, "enable_custom_logit_processor", False))
