"""Keys of ``custom_params`` that are SGLang's or ours: passed on, and refused from clients.

SGLang puts findings of its front end (the end of the reasoning, say) into the client's own dict,
under keys that it trusts. So a hook remembers each key that SGLang adds, and admission refuses any
other reserved key. The scheduler cannot know the origin of a key, so it checks the value's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from weakref import ProxyType

from sglang_lp.errors import RequestError, shown
from sglang_lp.policy.fields import ENGINE_FIELDS
from sglang_lp.policy.sections import LEVELS
from sglang_lp.server.gate.coded import Coded

#: Most keys of ``custom_params``: a chain of the greatest length has some 150 parameters.
MAX_KEYS = 1_024

#: What the front end read in other fields of a request: a thinking budget, a level of effort.
BUDGET_FIELD = "__sglang_lp_budget"
EFFORT = "__sglang_lp_effort"
#: Marks a chat that continues an answer whose reasoning has ended.
THOUGHT = "__sglang_lp_thought"
#: Microseconds that the constructors of a request take, as admission measured them.
MAKING = "__sglang_lp_making"
#: In a placeholder: the reason why admission refused the request.
REFUSAL = "__sglang_lp_refused"
#: The processor that a request names in its ``metadata``. Admission takes it away again.
ROUTED = "__sglang_lp_routed"

#: Other engines' fields that ask for a rule, by their names.
FIELD_KEYS = {name: f"__sglang_lp_{name}" for name in ENGINE_FIELDS}

_REQUEST = "__req__"
_PREFIX = "__sglang_"
#: The tokens that end this request's thoughts, where its effort says which.
END_TOKEN_IDS = "__sglang_reasoning_end_token_ids"  # noqa: S105 - no secret
_IN_GRAMMAR = "__sglang_reasoning_in_grammar"
#: Most end tokens that SGLang sets.
_MAX_END_TOKEN_IDS = 32


class _MarkedParams(dict[str, Any]):
    """``custom_params`` with the mark of the keys that SGLang or a hook of ours added.

    SGLang passes on one dict, so the mark is an attribute of it. A copy loses the mark: reserved
    keys in it then count as the client's, and are refused.

    Attributes:
        added: The keys that SGLang or a hook of ours added.
    """

    added: frozenset[str]


def remember(
    original: Callable[..., None], sampling_params: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    """Remember a key that SGLang sets: the hook around each of SGLang's setters."""
    before = sampling_params.get("custom_params")
    original(sampling_params, *args, **kwargs)
    after = sampling_params.get("custom_params")
    if after is before or not isinstance(after, dict):
        return
    known = before if isinstance(before, dict) else {}
    if len(after) > MAX_KEYS:
        return  # admission refuses it
    marked = _MarkedParams(after)
    # A client's key stays the client's, also where SGLang writes over it.
    marked.added = _added(known) | (_reserved(after) - _reserved(known))
    sampling_params["custom_params"] = marked


def add_own(custom_params: object, key: str, value: object) -> object:
    """Return ``custom_params`` with a key of ours, unless the client sent something in its place.

    Args:
        custom_params: The request's ``custom_params``, or ``None``.
        key: ``BUDGET_FIELD``, ``EFFORT``, ``MAKING``, ``REFUSAL``, ``ROUTED`` or ``THOUGHT``.
        value: Its value.
    """
    known = {} if custom_params is None else custom_params
    if not isinstance(known, dict) or key in known or len(known) > MAX_KEYS:
        return custom_params  # a later check refuses it
    marked = _MarkedParams({**known, key: value})
    marked.added = _added(known) | {key}
    return marked


def add_given(custom_params: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``custom_params`` with more that the client sent; what SGLang added stays SGLang's."""
    marked = _MarkedParams({**custom_params, **given})
    marked.added = _added(custom_params)
    return marked


def check_origin(custom_params: object) -> None:
    """Refuse SGLang's keys where a client sent them.

    Args:
        custom_params: As they reach SGLang's front end.

    Raises:
        RequestError: No object; or it has a key of SGLang's that SGLang has not added.
    """
    if custom_params is None:
        return
    if not isinstance(custom_params, dict):
        raise RequestError(f"custom_params: expected an object, got {shown(custom_params)}")
    _check_count(custom_params)
    foreign = _reserved(custom_params) - _added(custom_params)
    if foreign:
        _refuse(min(foreign))


def check_shape(custom_params: object, req: object) -> None:
    """Refuse SGLang's keys where SGLang cannot have set them so.

    Args:
        custom_params: As they reach the scheduler.
        req: SGLang's request that they belong to.

    Raises:
        RequestError: No object, a key that SGLang does not know, or a value that it does not set.
    """
    if custom_params is None:
        return
    if not isinstance(custom_params, dict):
        raise RequestError(f"custom_params: expected an object, got {shown(custom_params)}")
    _check_count(custom_params)
    for key in _reserved(custom_params):
        value = custom_params[key]
        if not _fits(key, value, req):
            _refuse(key)


def refuse_placeholder(custom_params: object) -> None:
    """Refuse the placeholder of a request that admission refused.

    Raises:
        RequestError: It is a placeholder; the error is admission's.
    """
    if isinstance(custom_params, dict) and REFUSAL in custom_params:
        coded = Coded.of_text(custom_params[REFUSAL])
        if coded is None:
            _refuse(REFUSAL)
        raise coded._replace(by_client=True).as_error()


def _check_count(custom_params: Mapping[Any, Any]) -> None:
    """Refuse more keys than any processor has parameters, before they are looked at."""
    if len(custom_params) > MAX_KEYS:
        raise RequestError(
            f"custom_params: expected at most {MAX_KEYS} parameters, got {len(custom_params)}; "
            "send many values as a list"
        )


def _reserved(custom_params: Mapping[Any, Any]) -> frozenset[str]:
    names = [key for key in custom_params if isinstance(key, str)]
    return frozenset([key for key in names if key == _REQUEST or key.startswith(_PREFIX)])


def _fits(key: str, value: object, req: object) -> bool:
    """Tell whether SGLang or a hook of ours may have set a key to a value."""
    if key == _REQUEST:
        # SGLang before 0.5.23 puts the request itself there.
        return value is req or type(value) is ProxyType
    if key == END_TOKEN_IDS:
        return (
            isinstance(value, list)
            and 0 < len(value) <= _MAX_END_TOKEN_IDS
            and all(type(token_id) is int and token_id >= 0 for token_id in value)
        )
    if key in (EFFORT, REFUSAL):
        return type(value) is str and (key == REFUSAL or value in LEVELS)
    if key in (BUDGET_FIELD, MAKING):
        return type(value) is int
    if key in FIELD_KEYS.values():
        return _are_numbers(value)
    return key in (_IN_GRAMMAR, THOUGHT) and value is True


def _are_numbers(value: object) -> bool:
    """Tell whether a value is a number, or a list or an object of whole numbers."""
    if isinstance(value, list | dict):
        return all(
            type(one) is int for one in (value.values() if isinstance(value, dict) else value)
        )
    return type(value) in {int, float}


def _added(custom_params: Mapping[Any, Any]) -> frozenset[str]:
    return custom_params.added if isinstance(custom_params, _MarkedParams) else frozenset()


def _refuse(key: str) -> NoReturn:
    raise RequestError(f"custom_params: {shown(key)} is SGLang's own; leave it out")
