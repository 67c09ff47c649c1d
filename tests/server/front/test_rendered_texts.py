"""Texts that SGLang renders into one prompt are bounded before it renders them."""

from __future__ import annotations

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front.bounds import MAX_CHARACTERS_OF_TOKEN
from sglang_lp.server.front.rendered_texts import check_rendered
from sglang_lp.server.front.routes import ROUTES

CONTEXT = 100
MOST = CONTEXT * MAX_CHARACTERS_OF_TOKEN
LONG = "a" * (MOST + 1)
FIELDS = {route.path: route.rendered for route in ROUTES if route.rendered}


def user(content, **more):
    return [{"role": "user", "content": content, **more}]


def media(kind):
    return [{"type": "text", "text": "a"}, {"type": kind, kind: {"url": LONG}, "data": LONG}]


TOO_LONG = [
    ("/v1/chat/completions", {"messages": user(LONG)}, "messages"),
    ("/v1/chat/completions", {"messages": user([{"type": "text", "text": LONG}])}, "messages"),
    ("/v1/chat/completions", {"messages": user("a") * MOST}, "messages"),
    ("/v1/chat/completions", {"messages": user("a", tool_calls=[{"x": {"url": LONG}}])}, "mess"),
    ("/v1/chat/completions", {"messages": [], "tools": [{"image": {"url": LONG}}]}, "tools"),
    ("/v1/chat/completions", {"messages": user("a"), "tools": [{LONG: 1}]}, "tools"),
    ("/v1/chat/completions", {"messages": [], "chat_template_kwargs": {"a": [LONG]}}, "chat"),
    ("/invocations", {"messages": user(LONG)}, "messages"),
    ("/tokenize", {"messages": user(LONG)}, "messages"),
    ("/api/chat", {"messages": user(LONG, images=[])}, "messages"),
    ("/v1/responses", {"input": LONG}, "input"),
    ("/v1/responses", {"input": [{"type": "function_call_output", "output": LONG}]}, "input"),
    ("/v1/responses", {"input": "a", "instructions": LONG}, "instructions"),
    ("/v1/messages", {"messages": user("a"), "system": [{"text": LONG}]}, "system"),
    ("/v1/messages/count_tokens", {"messages": user([{"content": user(LONG)}])}, "messages"),
    ("/v1/decisions", {"input": LONG, "questions": [{"id": "a"}]}, "input"),
    ("/v1/decisions", {"input": [[LONG]], "questions": [{"id": "a"}]}, "input"),
    ("/v1/decisions", {"input": "a", "questions": [{"id": "a", "question": LONG}]}, "questions"),
    ("/v1/systemone", {"state": LONG, "questions": {"a": {}}}, "state"),
    ("/v1/systemone", {"state": {}, "questions": {"a": {}, "b": {"c": LONG}}}, "questions"),
]


# A tokenizer takes 6 s for three million characters, in SGLang's event loop.
@pytest.mark.parametrize(("path", "body", "field"), TOO_LONG)
def test_texts_that_are_too_long_for_the_context_are_refused(path, body, field):
    with pytest.raises(RequestError, match=rf"^{field}\w*: expected at most {MOST} characters"):
        check_rendered(body, FIELDS[path], CONTEXT)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"messages": user("a" * (MOST - len("roleusercontent"))), "model": LONG},
        ),
        ("/v1/chat/completions", {"messages": user(media("image_url"))}),
        ("/v1/messages", {"messages": user([{"content": media("image")}])}),
        ("/v1/responses", {"input": user(media("input_image"))}),
        ("/api/chat", {"messages": user("a", images=[LONG])}),
        ("/v1/decisions", {"input": "a", "questions": [{"id": "a" * 99}] * 99}),
        ("/v1/chat/completions", {"messages": 5, "tools": None, "input": {}}),
        ("/v1/decisions", {"input": None, "questions": 5}),
        ("/v1/chat/completions", [LONG]),
    ],
)
def test_media_other_fields_and_wrong_types_are_left_to_sglang(path, body):
    check_rendered(body, FIELDS[path], CONTEXT)
