"""The routes of SGLang's application that take a body, read from the application."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from hunt.fields import fields_of

if typing.TYPE_CHECKING:
    from hunt.sent import Body

__all__ = ["Route", "routes"]

#: Routes for administrators that change nothing for other clients.
_SAFE = {"/abort_request"}


class Route(NamedTuple):
    """A route.

    Attributes:
        path: Its path.
        model: The class of its body.
        plain: A smallest body that it takes, as far as names and types tell.
    """

    path: str
    model: type
    plain: Body


#: Values by field: required fields, and fields that keep an answer short.
_PLAIN: Mapping[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi there",
    "text": "hi there",
    "input": "hi",
    "query": "hi",
    "items": ["b", "c"],
    "label_token_ids": [300, 301],
    "documents": ["b"],
    "tokens": [300],
    "tools": [],
    "tool_call_parser": "qwen25",
    "reasoning_parser": "qwen3",
    "max_tokens": 4,
    "max_output_tokens": 6,
    "instances": [{"text": "hi there"}],
    "capacity_of_str_len": 100,
    "session_id": "none",
    "rid": "none",
}
#: Fields of which a body has to have one, though none is required.
_ONE_OF = (
    *("text", "query", "messages", "prompt", "items", "input", "max_tokens", "label_token_ids"),
    *("tool_call_parser", "reasoning_parser"),
)
#: Where parameters of sampling lie.
SAMPLING: Mapping[str, tuple[str, ...]] = {
    "/generate": ("sampling_params",),
    "/vertex_generate": ("parameters", "sampling_params"),
    "/api/chat": ("options",),
    "/api/generate": ("options",),
}


@cache
def routes() -> Mapping[str, Route]:
    """Map the paths of the routes that clients may call to the routes."""
    from sglang.srt.entrypoints import http_server
    from sglang.srt.utils.auth import AuthLevel

    found = {}
    for path, endpoint in _walk(http_server.app.routes):
        level = getattr(endpoint, "_auth_level", AuthLevel.NORMAL)
        if level != AuthLevel.NORMAL and path not in _SAFE:
            continue
        for model in _models(endpoint):
            found[path] = Route(path, model, _plain(model, path))
    return found


def _walk(routes: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for route in routes:
        inner = getattr(getattr(route, "original_router", route), "routes", None)
        if inner:
            yield from _walk(inner, prefix + getattr(route, "path", ""))
        elif "POST" in (getattr(route, "methods", None) or ()):
            yield prefix + route.path, route.endpoint


def _models(endpoint: Any) -> Iterator[type]:
    """Yield the classes of a route's body."""
    for annotation in typing.get_type_hints(endpoint).values():
        for one in (annotation, *typing.get_args(annotation)):
            if isinstance(one, type) and one.__module__.startswith("sglang") and fields_of(one):
                yield one


def _plain(model: type, path: str) -> Body:
    names = [name for name, one in fields_of(model).items() if one.is_required or name in _ONE_OF]
    body = {name: _PLAIN[name] for name in names if name in _PLAIN}
    if "messages" in body:
        body.pop("prompt", None)
    inner = body
    for name in SAMPLING.get(path, ()):
        inner = inner.setdefault(name, {})
    if path in SAMPLING:
        inner["num_predict" if name == "options" else "max_new_tokens"] = 4
    return body
