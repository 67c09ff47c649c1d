"""Code and field of the toolkit's errors in SGLang's error objects, whole and in streams."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import orjson
import pytest
from fastapi import HTTPException
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.managers.schedule_batch import FINISH_ABORT

from sglang_lp.errors import (
    Contradiction,
    InvalidParameter,
    ProcessorFault,
    RequestError,
    SglangLpError,
    Unsupported,
)
from sglang_lp.server.front import answer_errors
from sglang_lp.server.front.answer_errors import AnswerErrors, follow, keep_code, noting
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.scheduler.reasons import error_reason

REFUSED = InvalidParameter("BadWordsLogitProcessor", "words", "expected texts")
SAID = {"sglang_lp_code": "invalid_parameter", "param": "custom_params.words"}
JSON = [(b"content-type", b"application/json"), (b"content-length", b"7")]
EVENTS = [(b"content-type", b"text/event-stream")]


def fail(error, raw_request=None):
    with pytest.raises(type(error)), noting(raw_request):
        raise error


def answered(*bodies, status=400, headers=JSON, error=REFUSED, elsewhere=False):
    """Return the ASGI messages that a client gets from an app that fails and answers."""

    async def app(scope, _receive, send):
        if elsewhere:
            raw_request = SimpleNamespace(scope=scope)
            await asyncio.get_running_loop().run_in_executor(None, fail, error, raw_request)
        else:
            fail(error)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for body in bodies[:-1]:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": bodies[-1]})

    return answered_by(app)


def answered_by(app):
    """Return the ASGI messages that a client gets from an app."""
    sent = []

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
    told = whole({"error": {"message": "Internal server error"}}, error=error, status=500)
    assert told["error"]["sglang_lp_code"] == "processor_fault"


def test_only_errors_in_events_of_a_stream_get_a_code():
    events = [
        b'data: {"text": "an \\"error\\""}\n\n',
        b'event: error\ndata: {"type": "error", "error": {"message": "it failed"}}\n\n',
        b'data: {"response": {"error": {"message": "it failed"}}}\n\n',
        b"data: [DONE]\n\n",
    ]
    start, *bodies = answered(*events, status=200, headers=EVENTS)

    assert start["headers"] == EVENTS
    texts = [body["body"] for body in bodies]
    assert (texts[0], texts[3]) == (events[0], events[3])
    assert texts[1].startswith(b"event: error\ndata: {")
    one, other = (orjson.loads(text.partition(b"data: ")[2]) for text in texts[1:3])
    assert one["error"] == other["response"]["error"] == {"message": "it failed", **SAID}


SAME = "the same message"
#: Answers of one HTTP request that end at once: with errors of ours, SGLang's own, or well.
ANSWERS = [
    error_reason(Contradiction(SAME)).to_json(),
    error_reason(ProcessorFault(SAME)).to_json(),
    FINISH_ABORT(SAME, 500).to_json(),
    error_reason(Unsupported(f"beam_width: {SAME}")).to_json(),
    None,
]
CODES = ["contradiction", "processor_fault", None, "unsupported", None]


async def generate(reasons):
    for index, reason in enumerate(reasons):
        yield {"index": index, "meta_info": {"finish_reason": reason}}


def test_answers_that_end_at_once_with_the_same_message_have_each_its_own_code():
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        async for answer in follow(generate, ANSWERS):
            hidden = {"error": {"message": SAME, "code": answer["index"]}}
            body = b"data: " + orjson.dumps(hidden) + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})

    _, *bodies = answered_by(app)
    errors = [orjson.loads(body["body"].removeprefix(b"data: "))["error"] for body in bodies]
    assert [error["code"] for error in errors] == [*range(len(ANSWERS))]
    assert [error.get("sglang_lp_code") for error in errors] == CODES
    assert errors[3]["param"] == "beam_width"


@pytest.mark.parametrize(("reason", "code"), [*zip(ANSWERS[:4], CODES[:4], strict=True)])
def test_a_whole_answer_has_the_code_of_the_exception_that_sglang_raises_for_it(reason, code):
    async def handle(_manager, out, *_args):
        raise HTTPException(500, out["meta_info"]["finish_reason"]["message"])

    async def generating():
        # Another answer of the same HTTP request fails first.
        fail(InvalidParameter("BadWordsLogitProcessor", "words", "expected texts"))
        yield await keep_code(handle, None, {"meta_info": {"finish_reason": reason}})

    async def app(_scope, _receive, send):
        with pytest.raises(HTTPException):
            await anext(follow(generating))
        await send({"type": "http.response.start", "status": 500, "headers": JSON})
        await send({"type": "http.response.body", "body": b'{"error": {"message": "hidden"}}'})

    _, body = answered_by(app)
    assert orjson.loads(body["body"])["error"].get("sglang_lp_code") == code


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_without_an_error_of_ours_stays_as_it_is(status):
    body = b'{"error": {"message": "SGLang\'s own"}}'
    sent = answered(body, status=status, error=ValueError("SGLang's own"))
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
        noted.append((answer_errors._newest.get(), scope))

    asyncio.run(AnswerErrors(app)({"type": kind}, None, None))
    assert noted == [(None, {"type": kind})]


@given(
    st.builds(
        Coded, st.text(), st.text(), st.none() | st.text(), st.booleans(), st.none() | st.text()
    )
)
def test_a_text_says_the_whole_error(coded):
    assert Coded.of_text(coded.text) == coded
    culprit = None if coded.by_client else coded.culprit
    assert Coded.of(coded.as_error()) == coded._replace(culprit=culprit)


@pytest.mark.parametrize("text", ["", "a", "{}", "[]", '["a"]', '["a", 1]', '["a", "b", 1]'])
def test_a_text_that_is_no_error_says_none(text):
    assert Coded.of_text(text) is None


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
