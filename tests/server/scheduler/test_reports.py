"""Header and ``meta_info`` report of the processors that ran."""

import asyncio
import copy
from array import array
from contextlib import suppress
from http import HTTPStatus
from itertools import pairwise
from types import SimpleNamespace

import httpx
import orjson
import pytest
import torch
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp._engine.history.edit_log import EditLog
from sglang_lp._engine.history.host import Host
from sglang_lp._engine.history.row import Row
from sglang_lp.builtins import (
    ChoiceLogitProcessor,
    ForcedSequenceLogitProcessor,
)
from sglang_lp.client import loss_mask
from sglang_lp.client.answers import check_ran
from sglang_lp.errors import Contradiction, InvalidParameter, NotRun, ProcessorFault
from sglang_lp.links import Serving
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.front import header
from sglang_lp.server.front.answer_errors import AnswerErrors, noting
from sglang_lp.server.front.header import AnswerHeader, record_ran
from sglang_lp.server.front.meta_info import expect, take_report
from sglang_lp.server.front.reports import AnswerReports, ask, collect
from sglang_lp.server.scheduler import report as report_module
from sglang_lp.server.scheduler.report import describe, report
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest
from support.examples import examples


def answered(app, kind="http"):
    """Return the messages that middleware around an app sends."""
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(AnswerHeader(app, "f")({"type": kind}, None, send))
    return sent


def app_with(*admitted, headers=()):
    async def app(_scope, _receive, send):
        for names in admitted:
            record_ran(names)
        await send({"type": "http.response.start", "status": 200, "headers": [*headers]})
        await send({"type": "http.response.body", "body": b"x"})

    return app


@pytest.mark.parametrize(
    ("admitted", "value"),
    [
        ([()], b"none"),
        ([("A",)], b"A"),
        ([("A", "B"), (), ("B", "C")], b"A, B, C"),
        ([("Ä",)], rb"\xc4"),
    ],
)
def test_the_header_names_what_ran_on_any_prompt_of_a_request(admitted, value):
    start, body = answered(app_with(*admitted, headers=[(b"a", b"b")]))

    assert start["headers"] == [(b"a", b"b"), POLICY, (b"x-sglang-lp", value)]
    assert body == {"type": "http.response.body", "body": b"x"}


POLICY = (b"x-sglang-lp-policy", b"f")


@pytest.mark.parametrize(("names", "value"), [((), "none"), (("A", "B"), "A, B")])
def test_the_header_says_that_sglang_is_untested_and_a_client_still_finds_the_names(
    monkeypatch, names, value
):
    monkeypatch.setattr(header, "untested", lambda: "0.5.24")
    start, _body = answered(app_with(names))

    said = f"{value}, untested SGLang 0.5.24".encode()
    assert start["headers"] == [POLICY, (b"x-sglang-lp", said)]
    said = {name.decode(): value.decode() for name, value in start["headers"]}
    check_ran(names, said)
    with pytest.raises(NotRun):
        check_ran(["C"], said)


def test_the_endpoint_is_the_route_of_the_app_and_not_what_the_client_wrote():
    seen = []
    app = FastAPI()

    @app.get("/things/{name}")
    async def _thing(name: str) -> str:
        seen.append(header.find_endpoint())
        return name

    app.add_middleware(AnswerHeader, fingerprint="f")

    async def asked():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            await client.get("/things/secret")

    asyncio.run(asked())
    assert seen == ["/things/{name}"]
    assert header.find_endpoint() is None


EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]


def streaming(*steps):
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [*EVENTS]})
        for step in steps:
            if isinstance(step, tuple):
                record_ran(step)
            else:
                body = {"type": "http.response.body", "body": step, "more_body": step != b""}
                await send(body)

    return app


def test_a_stream_that_begins_before_its_request_is_admitted_waits_for_that():
    start, *bodies = answered(streaming(b"a", b"b", ("A",), b"c", b""))

    assert start["headers"][-1] == (b"x-sglang-lp", b"A")
    assert [body["body"] for body in bodies] == [b"a", b"b", b"c", b""]


def failing(error, before):
    """Return an app that admits a request or does not, and begins its stream before it fails."""

    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [*EVENTS]})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        if before:
            record_ran(["A"])
        with suppress(type(error)), noting():
            raise error
        await send({"type": "http.response.body", "body": b"failed", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def both(scope, receive, send):
        await AnswerErrors(AnswerHeader(app, "f"))(scope, receive, send)

    return both


def answered_by(app):
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(app({"type": "http"}, None, send))
    return sent


def test_a_stream_that_is_refused_after_it_began_is_answered_with_the_refusal():
    error = InvalidParameter("BadWordsLogitProcessor", "words", "expected texts")
    start, body = answered_by(failing(error, before=False))

    assert start["status"] == HTTPStatus.BAD_REQUEST
    assert POLICY in start["headers"]
    assert (b"content-length", b"%d" % len(body["body"])) in start["headers"]
    assert orjson.loads(body["body"])["error"] == {
        "message": str(error),
        "type": "invalid_request_error",
        "code": 400,
        "sglang_lp_code": "invalid_parameter",
        "param": "custom_params.words",
    }


@pytest.mark.parametrize(
    ("error", "before"),
    [(Contradiction("no token is left"), True), (ProcessorFault("A failed"), False)],
)
def test_a_stream_that_was_admitted_or_is_not_the_callers_fault_goes_on(error, before):
    start, *bodies = answered_by(failing(error, before))

    assert start["status"] == HTTPStatus.OK
    assert [body["body"] for body in bodies] == [b"begun", b"failed", b""]


@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_a_stream_of_something_else_comes_whole(count):
    start, *bodies = answered(streaming(*[b"x"] * count, b""))

    assert start["headers"] == [*EVENTS, POLICY]
    assert len(bodies) == count + 1


def test_a_stream_of_something_else_does_not_wait_for_its_end():
    sent, waiting = [], []

    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [*EVENTS]})
        for count in range(30):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            waiting.append(count + 2 - len(sent))

    async def send(message):
        sent.append(message)

    asyncio.run(AnswerHeader(app, "f")({"type": "http"}, None, send))

    assert 0 < max(waiting) <= 8
    assert len(sent) == 31


def test_an_answer_without_generation_names_the_policy_alone():
    assert answered(app_with())[0]["headers"] == [POLICY]
    assert answered(app_with(("A",)), "lifespan")[0]["headers"] == []


def test_requests_at_the_same_time_do_not_name_each_others():
    async def app(scope, _receive, send):
        record_ran([scope["name"]])
        await asyncio.sleep(0)
        await asyncio.create_task(other(scope))
        await send({"type": "http.response.start"})

    async def other(scope):
        record_ran([scope["name"].lower()])

    async def both():
        sent = {}

        def send_to(name):
            async def send(message):
                sent[name] = message["headers"][1][1]

            return send

        middleware = AnswerHeader(app, "f")
        await asyncio.gather(
            *(middleware({"type": "http", "name": n}, None, send_to(n)) for n in "ABC")
        )
        return sent

    assert asyncio.run(both()) == {"A": b"A, a", "B": b"B, b", "C": b"C, c"}


def test_outside_of_an_answer_nothing_is_taken_down():
    record_ran(["A"])


# The report


class Broken(LogitProcessor):
    def edit(self, request, edits):
        edits.ban([1])

    def report(self, params, prompt_ids, output_ids, forced):
        raise SystemExit("its own mistake")


class Fixed(LogitProcessor):
    def edit(self, request, edits):
        if request.position == 0:
            edits.always().ban([0])
            edits.wake_at(3)
        else:
            edits.force(4)
            edits.wake_at(10)


def decoded(processor, params, script, prompt=(1, 2, 9), resumed=0):
    """Return a request after a decode in which the model prefers the tokens of a script."""
    req = FakeRequest([*prompt], served=True)
    req.finished_len = None
    custom_params = req.custom_params(params)
    parsed = processor.parse_params(params, 50)
    host = StockHost(req, may_lag=False)
    host.resumed = resumed
    attach_row(custom_params, [Serving(processor().serving(parsed), parsed)], host)
    batch = Batch()
    for wish in script:
        logits = torch.zeros(1, 50)
        logits[0, wish] = 5.0
        batch.step(logits, rows_of([custom_params]), [custom_params])
        req.append(int(logits[0].argmax()))
    req.output_ids = array("q", req.output_ids)
    req.sampling_params = SimpleNamespace(custom_params=custom_params)
    req.finished_reason = SimpleNamespace(to_json=lambda: {**STOP})
    report(req)
    return req


STOP, ABORT = {"type": "stop", "matched": 2}, {"type": "abort", "message": "gone"}


def said(req):
    """Return the report that the client gets with an answer."""
    meta_info = {"id": 1, "finish_reason": req.finished_reason.to_json()}
    take_report(None, {"meta_info": meta_info}, None, False)
    made = meta_info.pop("sglang_lp")
    assert meta_info == {"id": 1, "finish_reason": STOP}
    return made


def test_a_report_says_what_was_forced_and_where_edits_were():
    req = decoded(ForcedSequenceLogitProcessor, {"token_ids": [7, 8]}, [3, 3, 3, 3])

    assert said(req) == {
        "processors": [],
        "policy": None,
        "forced": 2,
        "forced_at": [[0, 2]],
        "edited": [],
        "truncated": None,
    }


def test_a_token_without_an_alternative_counts_as_forced_and_is_not_learned():
    params = {"token_ids": [7, 8, 7, 9], "lengths": [2, 2], "eos_token_ids": [6]}

    told = said(decoded(ChoiceLogitProcessor, params, [3, 9, 3]))

    assert (told["forced_at"], told["edited"]) == ([[0, 1], [2, 3]], [[1, 2]])
    assert loss_mask({"meta_info": {"completion_tokens": 3, "sglang_lp": told}}) == [0, 1, 0]


def test_edits_that_hold_are_counted_to_the_end():
    report = said(decoded(Fixed, {}, [3] * 5))

    assert (report["edited"], report["forced"], report["forced_at"]) == (
        [[0, 3], [4, 5]],
        1,
        [[3, 4]],
    )


def test_tokens_behind_the_end_of_an_answer_are_not_counted():
    req = decoded(ForcedSequenceLogitProcessor, {"token_ids": [7, 8, 9]}, [3] * 4)
    req.finished_len = 2
    report(req)

    assert said(req)["forced_at"] == [[0, 2]]


@given(st.lists(st.sampled_from(["", "edit", "force"]), max_size=60), st.integers(0, 5))
@examples(3)
def test_every_position_is_told_as_what_it_is(acts, since):
    taken, expected = EditLog(), {"edit": [], "force": []}
    for position, act in enumerate(acts):
        if act:
            taken.add(since + position, forced=act == "force")
            expected[act].append(position)
    told = taken.report(since, len(acts))

    assert positions(told["edited"]) == expected["edit"]
    assert positions(told["forced_at"]) == expected["force"]
    assert (told["forced"], told["truncated"]) == (len(expected["force"]), None)


def positions(spans):
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    return [position for span in spans for position in range(*span)]


def test_spans_are_never_merged_and_too_many_are_cut_where_the_report_says():
    taken = EditLog()
    for position in range(0, 5000, 2):
        taken.add(position, forced=position % 4 == 0)
    told = taken.report(0, 5000)

    assert told["truncated"] == 2048  # after as many spans
    assert positions(told["forced_at"]) == [*range(0, 2048, 4)]
    assert positions(told["edited"]) == [*range(2, 2048, 4)]
    assert told["forced"] == 1250
    assert taken.report(0, 2048)["truncated"] is None


def test_a_report_tells_the_positions_of_the_new_answer_and_reports_see_the_whole():
    class Reports(ForcedSequenceLogitProcessor):
        def report(self, params, prompt_ids, output_ids, forced):
            return {"seen": [[*prompt_ids], [*output_ids], forced]}

    req = decoded(Reports, {"token_ids": [5, 6, 7, 8]}, [3, 3, 3], resumed=2)
    made = said(req)
    prompt = [*req.origin_input_ids]

    assert made["forced_at"] == [[0, 2]]
    assert made["seen"] == [prompt[:-2], [*prompt[-2:], 7, 8, 3], [[2, 4]]]


def test_a_row_reports_its_processors_but_for_those_that_are_not_the_clients():
    own = Serving(Fixed(), Fixed.parse_params({}))
    operators = Serving(Broken(), Broken.parse_params({}), is_named=False)
    row = Row([own, operators], Host(None))

    assert orjson.loads(describe(row, [1], [7], EditLog(), SimpleNamespace()))["processors"] == []
    assert row.name == "Fixed"


def test_a_report_that_fails_is_a_fault_of_its_processor():
    with pytest.raises(ProcessorFault, match=r"Broken failed in its report: .*its own mistake"):
        decoded(Broken, {}, [3])


@pytest.mark.parametrize("value", [object(), print, {1: 2}, {1, 2}, "\ud800", 1 << 70])
def test_a_report_that_is_no_json_is_a_fault_of_its_processor(value):
    class Reports(Fixed):
        def report(self, params, prompt_ids, output_ids, forced):
            return {"value": value}

    with pytest.raises(ProcessorFault, match="Reports failed in its report"):
        decoded(Reports, {}, [3])


def test_a_class_cannot_write_over_what_the_server_says():
    class Reports(Fixed):
        def report(self, params, prompt_ids, output_ids, forced):
            return {"forced": "a", "policy": "mine", "more": 1}

    made = said(decoded(Reports, {}, [3]))
    assert (made["forced"], made["policy"], made["more"]) == (0, None, 1)


def test_a_report_that_cannot_be_counted_is_not_made(monkeypatch):
    class Counting:
        @staticmethod
        def finish(_report, error):
            raise ArithmeticError(error)

    monkeypatch.setattr(report_module, "writing", Counting)
    with pytest.raises(ArithmeticError):
        decoded(Fixed, {}, [3])


def test_an_answer_says_the_same_however_often_sglang_asks_why_it_ended():
    req = decoded(Fixed, {}, [3])

    assert said(req) == said(req)


def test_a_report_that_cannot_be_read_ends_its_own_request():
    meta_info = {"finish_reason": {**STOP, "sglang_lp": "{"}}
    with pytest.raises(ValueError, match="unexpected end"):
        take_report(None, {"meta_info": meta_info}, None, False)


def answer(finish, *, report=False, runs=True, mode="null"):
    """Return how an answer ends for the client, and for SGLang."""
    obj = SimpleNamespace()
    if runs:
        expect(obj)
    out = {"meta_info": {"finish_reason": {**finish, **({"sglang_lp": "{}"} if report else {})}}}
    manager = SimpleNamespace(server_args=SimpleNamespace(disaggregation_mode=mode))
    take_report(manager, out, SimpleNamespace(obj=copy.copy(obj)), False)
    return out["meta_info"]["finish_reason"]


@pytest.mark.parametrize("finish", [STOP, {"type": "length", "length": 5}])
@pytest.mark.parametrize("mode", ["null", "decode"])
def test_an_answer_without_its_report_is_an_error(finish, mode):
    reason = answer(finish, mode=mode)

    assert (reason["type"], reason["status_code"]) == ("abort", 500)
    assert "no report came with this answer" in reason["message"]


@pytest.mark.parametrize(
    ("finish", "given"),
    [
        (STOP, {"report": True}),
        (STOP, {"runs": False}),
        (STOP, {"mode": "prefill"}),
        (ABORT, {}),
    ],
)
def test_an_answer_that_needs_no_report_is_left_alone(finish, given):
    assert answer(finish, **given) == finish


# The report in answers of OpenAI's endpoints


REPORTS = {
    index: {"sglang_lp": {"forced_at": [[0, 1]], "truncated": None}, "completion_tokens": tokens}
    for index, tokens in ((0, 3), (2, 2))
}


def written(*bodies, wants=True, kind=b"application/json", reports=REPORTS):
    """Return the body of an answer that SGLang sends in these parts, and its length as sent."""
    given = {"return_meta_info": wants}
    request = SimpleNamespace(stream=True, return_meta_info=True)

    async def generating():
        for index, made in reports.items():
            yield {"meta_info": {"id": "7", **made}, "index": index}

    async def app(_scope, _receive, send):
        ask(None, request, SimpleNamespace(_json=given))
        assert request.return_meta_info is not (wants is True)
        async for _answer in collect(generating):
            pass
        headers = [(b"content-type", kind), (b"content-length", b"7")]
        await send({"type": "http.response.start", "headers": headers})
        for place, body in enumerate(bodies, 1):
            more = place < len(bodies)
            await send({"type": "http.response.body", "body": body, "more_body": more})

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(AnswerReports(app)({"type": "http"}, None, send))
    start, *parts = sent
    return b"".join(part["body"] for part in parts), int(dict(start["headers"])[b"content-length"])


def choices(*indexes, **more):
    return [{"index": index, **more} for index in indexes]


def test_each_choice_of_a_whole_answer_gets_its_own_report():
    whole = orjson.dumps({"object": "text_completion", "choices": choices(0, 1, 2)})
    body, length = written(whole[:9], whole[9:])

    found = [choice.get("meta_info") for choice in orjson.loads(body)["choices"]]
    assert found == [REPORTS[0], None, REPORTS[2]]
    assert length == len(body)


def test_what_sglang_wrote_into_a_choice_stays():
    own = {"id": "7", "sglang_lp": {"forced": 1}}
    body, _ = written(orjson.dumps({"choices": choices(0, meta_info=own)}))

    assert orjson.loads(body)["choices"] == choices(0, meta_info=own)


@pytest.mark.parametrize("given", [{"wants": "yes"}, {"wants": None}, {"reports": {}}])
def test_an_answer_without_a_report_or_a_wish_for_it_is_left_alone(given):
    body = b'{"choices": [{"index": 0}]}'

    assert written(body, **given)[0] == body


STREAMED = b"text/event-stream; charset=utf-8"


@pytest.mark.parametrize(
    ("kind", "nothing"),
    [("text_completion", {"text": ""}), ("chat.completion.chunk", {"delta": {}})],
)
def test_a_stream_has_the_reports_before_its_end(kind, nothing):
    event = {"id": "7", "object": kind, "choices": choices(0, text="a"), "usage": {"n": 1}}
    first = b"data: %s\n\n" % orjson.dumps(event)

    body, _ = written(first, b"data: [DONE]\n\n", b"", kind=STREAMED)

    assert body.startswith(first)
    added, end = body[len(first) :].split(b"\n\n", 1)
    added = orjson.loads(added.removeprefix(b"data: "))
    assert end == b"data: [DONE]\n\n"
    assert (added["id"], added["object"], added["usage"]) == ("7", kind, None)
    assert added["choices"] == [
        {"index": index, **nothing, "finish_reason": None, "meta_info": meta}
        for index, meta in REPORTS.items()
    ]
    assert [loss_mask(choice) for choice in added["choices"]] == [[0, 1, 1], [0, 1]]


def test_a_response_has_the_report_itself_whole_and_streamed():
    response = {"object": "response", "output": []}
    expected = {**response, "meta_info": REPORTS[0]}
    begun = b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
    done = {"type": "response.completed", "response": response}

    whole, _ = written(orjson.dumps(response))
    end = b"event: response.completed\ndata: %s\n\n" % orjson.dumps(done)
    streamed, _ = written(begun, end, kind=STREAMED)

    assert orjson.loads(whole) == expected
    assert streamed.startswith(begun)
    last = orjson.loads(streamed[len(begun) :].partition(b"\ndata: ")[2])
    assert last == {**done, "response": expected}


def test_a_stream_that_ends_in_an_error_is_left_alone():
    error, end = b'data: {"error": {"code": 500}}\n\n', b"data: [DONE]\n\n"

    assert written(error, end, kind=STREAMED)[0] == error + end
