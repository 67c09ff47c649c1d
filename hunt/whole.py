"""Requests of every route of SGLang, with extreme values in the fields of SGLang's own classes."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from hunt.extremes import extremes
from hunt.fields import Field, fields_of
from hunt.routes import SAMPLING, Route, routes
from hunt.sent import CHAT, COMPLETIONS, GENERATE, Body, Sent
from hunt.values import chance, seldom

if TYPE_CHECKING:
    from hunt.servers import Kind

__all__ = ["whole_requests"]

#: Fields of ordinary requests, next to the extreme one.
_ORDINARY: Body = {
    "min_new_tokens": 3,
    "min_tokens": 3,
    "top_k": 5,
    "ignore_eos": True,
    "n": 2,
    "stream": True,
}
_LOGPROBS = {"return_logprob": True, "logprobs": True}
#: One text in these forms, of which a request has one.
_INPUTS = {"text", "input_ids", "input_embeds", "prompt", "messages"}


@st.composite
def whole_requests(draw: st.DrawFn, kind: Kind) -> Sent:
    """Draw a request with one to three extreme fields.

    Args:
        draw: Of Hypothesis.
        kind: Of the server that it is for.
    """
    found = routes()
    often = [GENERATE] * 40 + [CHAT, COMPLETIONS] * 8 + ["/vertex_generate", "/api/chat"] * 4
    route = found[draw(st.sampled_from([*often, *found]))]
    body = deepcopy(route.plain)
    places = _places(route, body)
    answering = places[-1]
    _want(draw, kind, *answering)
    odd = set()
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        where, model = draw(st.sampled_from(places))
        field = draw(st.sampled_from(_weighted(model)))
        if field.name in _INPUTS:
            for other in _INPUTS & fields_of(model).keys():
                where.pop(other, None)
        for name, value in _LOGPROBS.items():
            if "logprob" in field.name and name in fields_of(places[0][1]):
                body[name] = value
        where[field.name] = draw(st.sampled_from(extremes(field.name, field.type)))
        odd.add(field.name)
    if draw(chance(8)) and isinstance(body.get("text"), str):
        body["text"] = [body["text"], "yo"]
        _make_holes(draw, body, odd)
    leaves = draw(seldom(st.none(), st.just(1), 10)) if body.get("stream") is True else None
    return Sent(route.path, body, leaves, frozenset(odd))


def _places(route: Route, body: Body) -> list[tuple[Body, type]]:
    """Return the objects of a body that have fields, each with its class; sampling is last."""
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    places, inner = [(body, route.model)], body
    for name in SAMPLING.get(route.path, ()):
        inner = inner[name]
        model = GenerateReqInput if name == "parameters" else SamplingParams
        places += [(inner, model)] * (1 if name == "parameters" else 2)
    return places


@cache
def _weighted(model: type) -> list[Field]:
    """Return the fields of a class, those with numbers twice: numbers reach the sampler."""
    numbers = re.compile(r"\b(int|float)\b")
    fields = fields_of(model).values()
    return [field for field in fields for _ in range(1 + bool(numbers.search(field.type)))]


def _want(draw: st.DrawFn, kind: Kind, sampling: Body, model: type) -> None:
    """Write ordinary wishes, one of them for a token that is banned."""
    names = fields_of(model)
    if "temperature" in names:
        sampling["temperature"] = draw(st.sampled_from([0, 1]))
    if kind.banned_ids and "logit_bias" in names and draw(st.booleans()):
        sampling["logit_bias"] = {str(kind.banned_ids[0]): 60}
    for name, value in _ORDINARY.items():
        if name in names and draw(chance(5)):
            sampling[name] = value


def _make_holes(draw: st.DrawFn, body: Body, odd: set[str]) -> None:
    """Turn the values of fields into lists that do not fit two texts."""
    for name in odd & body.keys() - _INPUTS:
        value: Any = body[name]
        body[name] = draw(
            st.sampled_from([[value], [value, None], [None, value], [value] * 3, [[value]] * 2])
        )
