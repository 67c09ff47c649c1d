"""Bodies are checked where SGLang has parsed them, once, by the row of their route."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import orjson
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from pydantic import ValidationError
from starlette.requests import Request

from sglang_lp.errors import RequestError
from sglang_lp.server.front import routes
from sglang_lp.server.front.bodies import MAX_DEPTH, Bodies
from sglang_lp.server.front.header import add_middleware
from sglang_lp.server.front.ollama import Ollama
from sglang_lp.server.front.routes import ROUTES, Route, RouteKind, find
from sglang_lp.server.gate.guard import Guard
from sglang_lp.trust import Policy

# SGLang's own answers to errors.
pytestmark = pytest.mark.filterwarnings(
    "ignore:ORJSONResponse is deprecated:fastapi.exceptions.FastAPIDeprecationWarning"
)

WRONG = {"custom_logits_processor": "X"}
ESCAPED = rb'{"custom_logits_process\u006fr": "X", "text": "a"}'
NAMED = {"custom_logit_processor": "X"}
#: Routes that refuse a body without a parser.
PARSING = {"/parse_function_call", "/separate_reasoning"}


def answering(name, module="sglang.srt.entrypoints.http_server"):
    """Return a function that answers a route, as SGLang's of that name."""

    async def endpoint(request):
        return {"body": await request.json(), "again": await request.json()}

    endpoint.__name__, endpoint.__module__ = name, module
    return endpoint


@pytest.fixture(scope="module")
def guard():
    return Guard(Policy.default())


@pytest.fixture(scope="module")
def client(guard):
    """Ask an app with every route of the table, which parses bodies as SGLang's app does."""
    from sglang.srt.entrypoints import http_server

    class Checked(http_server.ORJSONRequest):
        pass

    class Watched(http_server.ORJSONRoute):
        def get_route_handler(self):
            async def handle(request):
                return JSONResponse(await self.endpoint(Checked(request.scope, request.receive)))

            return handle

    Bodies(guard).watch(Checked)
    app = FastAPI()
    app.router.route_class = Watched
    app.exception_handlers.update(http_server.app.exception_handlers)
    for route in ROUTES:
        app.post(route.path, response_model=None)(answering(route.endpoint))
    app.post("/new")(answering("new_of_sglang"))
    app.post("/other")(answering("other", "an.operators.plugin"))
    add_middleware(app, "fingerprint")
    with TestClient(app) as asking:
        yield asking


def post(client, path, body):
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return client.post(path, content=content, headers={"content-type": "application/json"})


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.path} {route.endpoint}")
def test_each_route_treats_a_named_processor_by_its_row(client, route):
    misspelled = [post(client, route.path, body).status_code for body in (WRONG, ESCAPED)]
    named = post(client, route.path, NAMED)

    checked = route.kind in {RouteKind.HONOURED, RouteKind.REFUSED}
    assert misspelled == [400 if checked or route.path in PARSING else 200] * 2
    if route.kind is RouteKind.REFUSED:
        assert f"no custom logit processor on {route.path}, {route.why}" in named.text
    others = {"/vertex_generate", "/api/chat", "/api/generate", *PARSING}
    assert (named.status_code == 400) == (route.kind is RouteKind.REFUSED or route.path in others)


def test_a_refusal_has_the_form_of_its_route_and_its_code(client):
    forms = {
        "/v1/chat/completions": lambda said: said,
        "/v1/responses": lambda said: said["error"],
        "/v1/messages": lambda said: said["error"],
        "/api/chat": lambda said: {**said, "message": said["error"]},
    }
    for path, error in forms.items():
        found = error(post(client, path, {**WRONG, "options": WRONG}).json())
        assert found["message"].startswith("custom_logits_processor: "), path
        assert found["sglang_lp_code"] == "invalid_request", path


# SGLang renders the template of /v1/responses in its event loop, without the check of a chat.
def test_a_client_sends_no_chat_template(client):
    body = {"chat_template_kwargs": {"chat_template": "{% for one in range(9) %}{% endfor %}"}}
    for path in ("/v1/responses", "/v1/chat/completions", "/invocations", "/tokenize"):
        refused = post(client, path, body)
        assert refused.status_code == 400, path
        assert "chat_template_kwargs: expected no chat_template" in refused.text, path


def test_a_route_of_sglangs_that_the_table_lacks_refuses_by_name_and_no_others(client):
    assert "which this toolkit does not know" in post(client, "/new", NAMED).text
    assert post(client, "/new", {"text": "a"}).status_code == 200
    assert post(client, "/other", {**NAMED, **WRONG}).status_code == 200


def test_a_refusal_is_counted_once(client, guard):
    before = sum(guard.audit.counts.values())
    post(client, "/generate", WRONG)

    assert sum(guard.audit.counts.values()) == before + 1


def test_a_form_is_checked_as_a_body(guard):
    class Form:
        def __init__(self):
            self.scope = {"endpoint": answering("openai_v1_audio_transcriptions")}
            self.headers = {}

        async def json(self):
            pass

        async def form(self, **_limits):
            return {"custom_params": "{}", "model": "m"}

    Bodies(guard).watch(Form)
    with pytest.raises(HTTPException, match="no custom logit processor on /v1/audio"):
        asyncio.run(Form().form(max_files=5))


# SGLang's answer to a wrong body shows the body, for which Python's recursion did not suffice.
@pytest.mark.parametrize("levels", [(b"[", b"]"), (b'{"a":', b"}")], ids=["lists", "objects"])
def test_a_body_of_too_many_levels_is_refused(client, levels):
    begin, end = levels
    for depth, status in ((MAX_DEPTH, 200), (MAX_DEPTH + 1, 400), (1_000, 400)):
        assert post(client, "/new", begin * depth + b"1" + end * depth).status_code == status
    deep = begin * 200 + b"1" + end * 200
    named = post(client, "/generate", b'{"options":{"seed":%s}}' % deep).json()["message"]
    assert named.startswith(f"seed: expected at most {MAX_DEPTH} levels")
    wide = b"[%s]" % b",".join([b"[[1]]"] * MAX_DEPTH)
    assert post(client, "/new", wide).status_code == 200


def test_a_chat_that_is_too_long_for_the_context_is_refused_in_the_form_of_its_route(
    client, guard, monkeypatch
):
    monkeypatch.setattr(guard.server, "context", 10)
    body = {"messages": [{"role": "user", "content": "a" * 161}]}
    refused = post(client, "/v1/messages", body)

    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("messages: expected at most 160 charact")
    assert post(client, "/generate", body).status_code == 200
    body["messages"][0]["content"] = [{"type": "image", "source": {"data": "a" * 161}}]
    assert post(client, "/v1/messages", body).status_code == 200


# Starlette decoded 540 kB of punycode in 7 s, and Python keeps each unknown name of a codec.
@pytest.mark.parametrize("charset", ["punycode", '"idna"', "no-codec", "UTF-8; charset=utf-7"])
def test_a_form_in_another_charset_than_utf_8_is_not_read(guard, charset):
    with pytest.raises(HTTPException, match="expected a form in UTF-8") as refused:
        asyncio.run(form(guard, f"multipart/form-data; boundary=x; Charset={charset}"))
    assert refused.value.status_code == 400


@pytest.mark.parametrize("charset", ["", "; charset=UTF-8", '; charset="utf-8"'])
def test_a_form_in_utf_8_is_read(guard, charset):
    fields = asyncio.run(form(guard, f"multipart/form-data{charset}; boundary=x"))
    assert [*fields.multi_items()] == [("language", "é")]


async def form(guard, content_type):
    """Return the fields of a form, read as SGLang's app reads it."""

    class Form(Request):
        pass

    async def receive():
        head = b'--x\r\nContent-Disposition: form-data; name="language"\r\n\r\n'
        return {"type": "http.request", "body": head + "é\r\n--x--\r\n".encode()}

    Bodies(guard).watch(Form)
    headers = [(b"content-type", content_type.encode())]
    return await Form({"type": "http", "headers": headers}, receive).form()


def test_an_event_of_a_websocket_is_refused_as_sglang_refuses_one(sglang, guard):
    check = Bodies(guard).check_event
    before = sum(guard.audit.counts.values())
    check({"type": "session.update", "session": {"type": "transcription"}})
    for event in ({"session": NAMED}, NAMED, {"session": {"custom_params": {}}}):
        with pytest.raises(ValidationError) as refused:
            check({"type": "session.update", **event})
        (error,) = refused.value.errors()
        assert "no custom logit processor on /v1/realtime" in error["msg"]
    assert sum(guard.audit.counts.values()) == before + 3


def test_no_route_is_found_before_one_is_chosen():
    assert find({}) is None
    assert find({"endpoint": answering("x", "my.plugin")}) is None
    assert find({"endpoint": answering("generate_request")}) == ROUTES[0]
    routes.check({}, NAMED)


def test_every_row_that_runs_processors_says_where_and_every_other_why():
    for route in ROUTES:
        assert (route.shape is not None) == (route.kind is RouteKind.HONOURED), route
        assert bool(route.why) == (route.kind is RouteKind.REFUSED), route
        assert isinstance(route, Route)


# Ollama's streams


def stream_of(*parts):
    """Return the lines that a stream of Ollama's has, given what SGLang's has; an error raises."""

    async def lines():
        for part in parts:
            if isinstance(part, Exception):
                raise part
            yield part

    async def original(_serving, _request, _raw):
        return SimpleNamespace(body_iterator=lines())

    reader = SimpleNamespace(keep_options=lambda *_: None)

    async def collect():
        response = await Ollama(reader).answer(original, None, SimpleNamespace(options={}), None)
        return [line async for line in response.body_iterator]

    return asyncio.run(collect())


def test_an_error_before_the_first_line_is_an_answer_and_one_later_the_last_line():
    for error in (RequestError("no"), ValueError("no")):
        with pytest.raises(HTTPException, match="no") as refused:
            stream_of(error)
        assert refused.value.status_code == 400
    with pytest.raises(HTTPException) as failed:
        stream_of(HTTPException(500, "broken"))
    assert failed.value.status_code == 500
    for error in (ValueError("no"), HTTPException(500, "no")):
        assert stream_of(b"1", b"2", error) == [b"1", b"2", b'{"error":"no"}\n']
    assert stream_of(b"1") == [b"1"]
