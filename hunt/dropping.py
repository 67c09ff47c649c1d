"""Requests that name a processor on any route that generates: rightly, misspelled, escaped."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from hunt.routes import SAMPLING, routes
from hunt.sent import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES, Sent
from hunt.values import chance

__all__ = ["BUDGETS", "FIELD", "GENERATING", "MISSPELLED", "PROCESSOR", "naming"]

FIELD, PARAMS = "custom_logit_processor", "custom_params"
PROCESSOR = "BadWordsLogitProcessor"
#: Routes with parameters of sampling apart from the other fields.
_OWN_FORM = {GENERATE, "/vertex_generate"}
#: Routes that answer with generated text.
GENERATING = (
    *(GENERATE, COMPLETIONS, CHAT, RESPONSES, MESSAGES),
    *("/vertex_generate", "/invocations", "/api/chat", "/api/generate"),
)
#: Names that clients write in place of the two.
MISSPELLED = {
    *(
        f"{own}logit{s}_processor{es}"
        for own in ("custom_", "")
        for s in ("s", "")
        for es in ("s", "")
    ),
    *("custom_param", "custom_parameter", "custom_parameters"),
} - {FIELD}
BUDGETS = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens")
_WRONG: tuple[Any, ...] = ("many", [], {}, 1.5)


@st.composite
def naming(draw: st.DrawFn) -> Sent:
    """Draw a request with a processor, or with a budget of the wrong type."""
    path = draw(st.sampled_from(GENERATING))
    body = deepcopy(routes()[path].plain)
    places = [body]
    for name in SAMPLING.get(path, ()):
        places.append(places[-1][name])
    top, sampling = (places[-2], places[-1]) if path in _OWN_FORM else (body, body)
    if draw(chance(4)) and path not in {*_OWN_FORM, COMPLETIONS}:
        field = draw(st.sampled_from(BUDGETS))
        body[field] = draw(st.sampled_from(_WRONG))
    else:
        field = draw(st.sampled_from([FIELD, FIELD, *sorted(MISSPELLED)]))
        draw(st.sampled_from([*places, top]))[field] = PROCESSOR
        sampling[PARAMS] = {"words": [" numbers"]}
    if draw(chance(4)):
        top["stream"] = True
    return Sent(path, body, odd=frozenset({field}), is_escaped=draw(st.booleans()))
