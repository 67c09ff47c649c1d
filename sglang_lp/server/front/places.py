"""Fields that a client misspells or puts in the wrong place: SGLang would drop them silently."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

from sglang_lp.errors import RequestError
from sglang_lp.params import is_private

_PROCESSOR, _PARAMS = "custom_logit_processor", "custom_params"
#: Names that clients write in place of a field's name.
_MISSPELLED = {
    **dict.fromkeys(
        (
            "custom_logit_processors",
            "custom_logits_processor",
            "custom_logits_processors",
            "logit_processor",
            "logit_processors",
            "logits_processor",
            "logits_processors",
        ),
        _PROCESSOR,
    ),
    **dict.fromkeys(("custom_param", "custom_parameter", "custom_parameters"), _PARAMS),
}
_EXTRA_BODY = "extra_body"
#: A body without these, and with each right field once, is not parsed a second time.
_MARKS = tuple(f'"{name}"'.encode() for name in (*_MISSPELLED, _EXTRA_BODY))

#: The body of the ``/generate`` request that is being answered, until it has been checked.
_body: ContextVar[list[bytes] | None] = ContextVar("sglang_lp_body", default=None)


def check_openai(body: Any) -> None:
    """Check the body of a chat, a completion, a response or an Anthropic message.

    Raises:
        RequestError: A field is misspelled or in the wrong place. The message says which is right.
    """
    if not isinstance(body, Mapping):
        return
    _check_names(body)
    sampling = body.get("sampling_params")
    for name in (_PROCESSOR, _PARAMS):
        if isinstance(sampling, Mapping) and sampling.get(name) is not None:
            raise RequestError(
                f"{name}: expected at the top of the body on this endpoint, got it in "
                "sampling_params, which only /generate has; move it to the top"
            )


def check_generate(obj: Any) -> None:
    """Check the body of the ``/generate`` request that is being answered, once.

    Args:
        obj: SGLang's ``GenerateReqInput``, which has only the fields that SGLang knows.

    Raises:
        RequestError: As :func:`check_openai`.
    """
    parts = _body.get()
    if not parts:
        return
    raw = b"".join(parts)
    parts.clear()
    samplings = obj.sampling_params
    many = samplings if isinstance(samplings, list) else [samplings]
    known = {
        # SGLang gives all texts of a list the same object if the body has only one.
        _PARAMS: len({id(one) for one in many if _gives_params(one)}),
        _PROCESSOR: int(bool(obj.custom_logit_processor)),
    }
    has_more = any(raw.count(f'"{name}"'.encode()) > has for name, has in known.items())
    if not has_more and not any(mark in raw for mark in _MARKS):
        return
    try:
        # As SGLang has read it: orjson refuses NaN and half a surrogate pair.
        body = json.loads(raw)
    except RecursionError:  # SGLang read it with fewer calls on the stack
        raise RequestError("the body: expected JSON with fewer levels; nest it less") from None
    _check_names(body)
    if body.get(_PARAMS) is not None:
        raise RequestError(
            f"{_PARAMS}: expected in sampling_params on /generate, got it at the top of the body; "
            "move it into sampling_params"
        )
    samplings = body.get("sampling_params")
    for one in samplings if isinstance(samplings, list) else [samplings]:
        if isinstance(one, dict) and one.get(_PROCESSOR) is not None:
            raise RequestError(
                f"{_PROCESSOR}: expected at the top of the body on /generate, got it in "
                "sampling_params; move it to the top"
            )


def _gives_params(sampling: Any) -> bool:
    """Tell whether the client gave sampling parameters the field of a processor's parameters."""
    given = sampling.get(_PARAMS) if isinstance(sampling, dict) else None
    if isinstance(given, dict):  # perhaps ours, with the budget of ``max_thinking_tokens``
        return not all(map(is_private, given))
    return bool(given)


def _check_names(body: Mapping[str, Any]) -> None:
    """Refuse misspelled fields, and the openai client's argument as a field."""
    for name in body.keys() & _MISSPELLED.keys():
        if body[name] is not None:
            raise RequestError(f"{name}: no such field; did you mean {_MISSPELLED[name]!r}?")
    if body.get(_EXTRA_BODY):
        raise RequestError(
            f"{_EXTRA_BODY}: no field, but an argument of the openai client, which puts its "
            "entries at the top of the body; put them there"
        )


class BodyKeeper:
    """ASGI middleware that keeps the body of a ``/generate`` request for :func:`check_generate`.

    SGLang parses the body into an object without the fields that it does not know, and hands
    only that object to the functions that refuse a request.

    Args:
        app: The ASGI app.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self, scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Any
    ) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not scope["path"].endswith("/generate"):
            await self._app(scope, receive, send)
            return
        parts: list[bytes] = []

        async def receiving() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                parts.append(message.get("body", b""))
            return message

        token = _body.set(parts)
        try:
            await self._app(scope, receiving, send)
        finally:
            _body.reset(token)
