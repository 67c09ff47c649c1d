"""Levels of effort in fields that SGLang does not pass on to a processor.

SGLang's front end turns each request into its own form, and drops on the way what its model does
not need, such as ``reasoning_effort`` behind the chat template. The hooks here read these where
they still are, and keep them in ``custom_params`` under keys that no client can send. What they
mean is decided by the rules, in both gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_lp.policy.decisions import LEVELS
from sglang_lp.server.gate.reserved_keys import BUDGET_FIELD, EFFORT, add_own

__all__ = [
    "read_anthropic",
    "read_chat",
    "read_completion",
    "read_generate",
    "read_responses",
]


def read_chat(sampling: dict[str, Any], request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Keep ``reasoning_effort`` of a chat."""
    _keep(sampling, getattr(request, "reasoning_effort", None))


def read_responses(sampling: dict[str, Any], request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Keep ``reasoning.effort`` of a response."""
    _keep(sampling, getattr(request.reasoning, "effort", None))


def read_completion(
    converted: tuple[Any, Any], _serving: Any, _request: Any, raw_request: Any = None
) -> None:
    """Keep ``reasoning_effort`` of a completion, which SGLang's type has no field for."""
    body = getattr(raw_request, "_json", None)  # where Starlette keeps the body that it parsed
    if isinstance(body, Mapping):
        _keep(converted[0].sampling_params, body.get("reasoning_effort"))


def read_anthropic(
    chat_request: Any, _serving: Any, request: Any, *_args: Any, **_kwargs: Any
) -> None:
    """Keep budget and effort of a message of Anthropic's."""
    effort = getattr(getattr(request, "output_config", None), "effort", None)
    if effort in LEVELS:  # SGLang makes "max" of "xhigh"
        chat_request.custom_params = add_own(chat_request.custom_params, EFFORT, effort)


def read_generate(manager: Any, obj: Any, *_args: Any, **_kwargs: Any) -> None:
    """Keep ``max_thinking_tokens`` of any request.

    SGLang refuses it without ``--enable-strict-thinking``, before any gate.
    """
    budget = getattr(obj, "max_thinking_tokens", None)
    if type(budget) is not int:
        return
    preferred = (getattr(manager, "preferred_sampling_params", None) or {}).get("custom_params")
    many = isinstance(obj.sampling_params, list)
    samplings = obj.sampling_params if many else [obj.sampling_params]
    if not all(isinstance(one, dict | None) for one in samplings):
        return  # which SGLang refuses
    kept = []
    for one in samplings:
        own = (one or {}).get("custom_params", preferred)
        kept.append({**(one or {}), "custom_params": add_own(own, BUDGET_FIELD, budget)})
    obj.sampling_params = kept if many else kept[0]
    obj.max_thinking_tokens = None


def _keep(sampling: dict[str, Any], effort: object) -> None:
    custom_params = sampling.get("custom_params")
    if effort in LEVELS and EFFORT not in (custom_params or ()):
        sampling["custom_params"] = add_own(custom_params, EFFORT, effort)
