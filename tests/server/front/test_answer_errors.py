"""Code and field of the toolkit's errors in SGLang's error objects, whole and in streams."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import orjson
import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.errors import InvalidParameter, ProcessorFault, RequestError, SglangLpError
from sglang_lp.server.front import answer_errors
from sglang_lp.server.front.answer_errors import AnswerErrors, noting
from sglang_lp.server.gate.coded import Coded

REFUSED = InvalidParameter("BadWordsLogitProcessor", "words", "expected texts")
SAID = {"sglang_lp_code": "invalid_parameter", "param": "custom_params.words"}
JSON = [(b"content-type", b"application/json"), (b"content-length", b"7")]
EVENTS = [(b"content-type", b"text/event-stream")]


def fail(error, raw_request=None):
    with pytest.raises(type(error)), noting(raw_request):
        raise error


def answered(*bodies, status=400, headers=JSON, errors=(REFUSED,), elsewhere=False):
    """Return the ASGI messages that a client gets from an app that fails and answers."""
    sent = []

    async def app(scope, _receive, send):
        for error in errors:
            if elsewhere:
                raw_request = SimpleNamespace(scope=scope)
                await asyncio.get_running_loop().run_in_executor(None, fail, error, raw_request)
            else:
                fail(error)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for body in bodies[:-1]:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": bodies[-1]})

    async def send(message):
        sent.append(message)

    asyncio.run(AnswerErrors(app)({"type": "http", "path": "/"}, None, send))
    return sent


def whole(answer, **options):
    start, *parts = answered(orjson.dumps(answer), **options)
    body = b"".join(part["body"] for part in parts)
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(body)
    return orjson.loads(body)


ERROR = {"message": str(REFUSED), "type": "BadRequest", "code": 400}
#: SGLang's answers, by the endpoint.
WHOLE = {
    "/v1/chat/completions": lambda error: {"object": "error", **error},
    "/generate": lambda error: {"error": error},
    "/v1/messages": lambda error: {"type": "error", "error": error},
}


@pytest.mark.parametrize("path", WHOLE)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_refusal_has_its_code_and_its_field(path, elsewhere):
    written = WHOLE[path]
    assert whole(written(ERROR), elsewhere=elsewhere) == written({**ERROR, **SAID})


def test_an_error_in_parts_is_completed():
    start, body = answered(b'{"error": {"mess', b'age": "m"}}')
    assert orjson.loads(body["body"]) == {"error": {"message": "m", **SAID}}
    assert dict(start["headers"])[b"content-length"] == b"%d" % len(body["body"])


def test_an_http_exception_says_the_code_of_its_cause():
    error = HTTPException(500, "it failed")
    error.__cause__ = ProcessorFault("it failed")
    told = whole({"error": {"message": "Internal server error"}}, errors=[error], status=500)
    assert told["error"]["sglang_lp_code"] == "processor_fault"


def test_each_event_of_a_stream_has_the_code_of_its_own_error():
    first, second = RequestError("n: too many"), RequestError("bad_words: no")
    events = [
        b'data: {"text": "an \\"error\\""}\n\n',
        b'event: error\ndata: {"type": "error", "error": {"message": "n: too many"}}\n\n',
        b'data: {"response": {"error": {"message": "bad_words: no"}}}\n\n',
        b"data: [DONE]\n\n",
    ]
    start, *bodies = answered(*events, status=200, headers=EVENTS, errors=[first, second])

    assert start["headers"] == EVENTS
    texts = [body["body"] for body in bodies]
    assert (texts[0], texts[3]) == (events[0], events[3])
    assert texts[1].startswith(b"event: error\ndata: {")
    one, other = (orjson.loads(text.partition(b"data: ")[2]) for text in texts[1:3])
    assert one["error"] == {
        "message": "n: too many",
        "sglang_lp_code": "invalid_request",
        "param": "n",
    }
    assert other["response"]["error"]["param"] == "bad_words"


def test_an_error_of_sglangs_own_after_ours_has_no_code():
    def event(message):
        return b"data: " + orjson.dumps({"error": {"message": message}}) + b"\n\n"

    # Ours twice, as of two answers; then ours with its message hidden, twice; then SGLang's own.
    errors = [ProcessorFault("it failed"), REFUSED]
    asked = [str(REFUSED), str(REFUSED), "Internal server error", "Internal server error", "own"]
    _, *bodies = answered(*map(event, asked), status=200, headers=EVENTS, errors=errors)

    told = [orjson.loads(body["body"].removeprefix(b"data: "))["error"] for body in bodies]
    assert [error.get("sglang_lp_code") for error in told] == [
        *("invalid_parameter", "invalid_parameter", "processor_fault", "processor_fault"),
        None,
    ]
    assert bodies[-1]["body"] == event("own")


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_without_an_error_of_ours_stays_as_it_is(status):
    body = b'{"error": {"message": "SGLang\'s own"}}'
    sent = answered(body, status=status, errors=[ValueError("SGLang's own")])
    assert sent == [
        {"type": "http.response.start", "status": status, "headers": JSON},
        {"type": "http.response.body", "body": body},
    ]


DEEP = b'{"error": {"message": ' + b"[" * 500 + b"]" * 500 + b"}}"


@pytest.mark.parametrize(
    "body", [b"no JSON", b"[1]", b'{"error": "text"}', b'{"detail": 1}', DEEP], ids=range(5)
)
def test_what_is_no_error_object_stays_as_it_is(body):
    _, part = answered(body)
    assert part["body"] == body


def test_an_error_whose_message_is_no_text_has_its_code():
    assert whole({"error": {"message": [1]}}) == {"error": {"message": [1], **SAID}}


def test_a_whole_answer_that_succeeds_stays_as_it_is():
    body = b'data: {"error": {"message": "no event"}}\n\n'
    start, part = answered(body, status=200)
    assert (start["headers"], part["body"]) == (JSON, body)


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_what_is_no_http_request_notes_nothing(kind):
    noted = []

    async def app(scope, _receive, _send):
        fail(REFUSED, SimpleNamespace(scope=scope))
        fail(REFUSED)
        noted.append((answer_errors._noted.get(), scope))

    asyncio.run(AnswerErrors(app)({"type": kind}, None, None))
    assert noted == [(None, {"type": kind})]


@given(
    st.text(),
    st.from_regex(r"[a-z_]+", fullmatch=True),
    st.none() | st.from_regex(r"[a-z]\S*", fullmatch=True),
)
def test_a_text_says_message_code_and_field(message, code, param):
    assert Coded.of_text(Coded(message, code, param).text, "else") == (message, code, param)


def test_a_text_without_a_code_has_the_code_of_its_status():
    assert Coded.of_text("n: expected [1, 2]", "invalid_request") == (
        "n: expected [1, 2]",
        "invalid_request",
        None,
    )


def test_a_refusal_names_the_field_that_its_message_begins_with():
    fields = {
        "bad_words: expected words": "bad_words",
        "repetition_detection.min_count: expected 2": "repetition_detection.min_count",
        'metadata["sglang_lp"]: expected text': 'metadata["sglang_lp"]',
        "'a client: text' of something": None,
        "ChoiceLogitProcessor: it needs more": None,
        "no token is left: why": None,
    }
    assert {message: RequestError(message).param for message in fields} == fields
    assert RequestError().param is None
    assert SglangLpError("x: y").param is None
