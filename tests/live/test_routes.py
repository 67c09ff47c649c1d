"""Each route of the table treats processors on a real server as the table says."""

from __future__ import annotations

import httpx
import orjson
import pytest

from sglang_lp.builtins import ForcedSequenceLogitProcessor
from sglang_lp.server.front.routes import ROUTES, RouteKind
from sglang_lp.server.versions import OLDEST
from sglang_lp.wire.names import HEADER, REPORT
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]

NAME = "ForcedSequenceLogitProcessor"
TEXT = "Yes, sir."
PARAMS = {"text": TEXT}
OURS = {"custom_logit_processor": NAME, "custom_params": PARAMS}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "a"}]}
TOKENS = 32
SAMPLING = {"max_new_tokens": TOKENS, "custom_params": PARAMS}
OPTIONS = {"num_predict": TOKENS, **OURS}
WRONG = {**OPTIONS, "custom_params": {"texts": "a"}}

#: A request for each route that runs processors.
HONOURED = {
    "/generate": {"text": "a", "custom_logit_processor": NAME, "sampling_params": SAMPLING},
    "/v1/chat/completions": {**CHAT, "max_tokens": TOKENS, **OURS},
    "/v1/completions": {"model": "tiny", "prompt": "a", "max_tokens": TOKENS, **OURS},
    "/v1/responses": {"input": "a", "max_output_tokens": TOKENS, **OURS},
    "/v1/messages": {**CHAT, "max_tokens": TOKENS, **OURS},
    "/invocations": {**CHAT, "max_tokens": TOKENS, **OURS},
    "/vertex_generate": {
        "instances": [{"text": "a"}, {"text": "b"}],
        "parameters": {"custom_logit_processor": NAME, "sampling_params": SAMPLING},
    },
    "/api/chat": {**CHAT, "stream": False, "options": OPTIONS},
    "/api/generate": {"model": "tiny", "prompt": "a", "stream": False, "options": OPTIONS},
}
#: Bodies of Ollama's endpoints, to which options come.
OLLAMA = {
    "/api/chat": CHAT,
    "/api/generate": {"model": "tiny", "prompt": "a"},
}
REFUSED = [
    route.path
    for route in ROUTES
    if route.kind is RouteKind.REFUSED and route.since == OLDEST and route.path != "/v1/realtime"
]
on_honoured = pytest.mark.parametrize(
    "path", [route.path for route in ROUTES if route.kind is RouteKind.HONOURED]
)
on_ollama = pytest.mark.parametrize("path", OLLAMA)
streamed = pytest.mark.parametrize("stream", [False, True])


def ask(server, path, body):
    """Send a body, which may be bytes; return the answer."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    headers = {"content-type": "application/json"}
    return httpx.post(
        server.url + path, content=content, headers=headers, timeout=120, trust_env=False
    )


def model_of(server):
    """Return the name of the served model, which ``/v1/responses`` compares."""
    return httpx.get(server.url + "/v1/models", trust_env=False).json()["data"][0]["id"]


def lines(answer):
    """Return the lines of JSON of a stream of Ollama's."""
    return [orjson.loads(line) for line in answer.text.splitlines()]


@on_honoured
def test_a_route_that_runs_processors_runs_one_and_names_it(server, path):
    answer = ask(server, path, {**HONOURED[path], "model": model_of(server)})

    assert answer.status_code == 200, answer.text
    assert answer.headers[HEADER] == NAME
    assert TEXT in answer.text


@on_honoured
def test_a_misspelled_field_is_refused_on_every_route_however_its_key_is_written(server, path):
    known = orjson.dumps(HONOURED[path])
    for wrong in (b"custom_logits_processor", rb"custom_logit_process\u006frs"):
        answer = ask(server, path, known.replace(b"custom_logit_processor", wrong))

        assert answer.status_code == 400, answer.text
        assert "no such field; did you mean" in answer.text or "expected parameters" in answer.text


@on_honoured
def test_a_stream_that_is_refused_has_the_status_of_its_refusal(server, path):
    known = {**HONOURED[path], "model": model_of(server)}
    if path == "/vertex_generate":
        sent = {**known, "parameters": {**known["parameters"], "stream": True}}
    else:
        sent = {**known, "stream": True}
    parameter = orjson.dumps(sent).replace(b'{"text":"Yes', b'{"texts":"Yes')
    field = orjson.dumps(sent).replace(b"%d" % TOKENS, b'%d,"temperature":1e39' % TOKENS)
    for refused in (parameter, field):
        answer = ask(server, path, refused)

        assert answer.status_code == 400, answer.text
        assert answer.headers["content-type"] == "application/json"
        assert "sglang_lp_code" in answer.text


@pytest.mark.parametrize("path", REFUSED)
def test_a_route_without_processors_refuses_one_by_name(server, path):
    for named in ({"custom_logit_processor": NAME}, {"custom_params": PARAMS}):
        if "audio" in path:
            sent = {key: str(value) for key, value in named.items()}
            answer = httpx.post(
                server.url + path, data=sent, files={"file": b"x"}, timeout=60, trust_env=False
            )
        else:
            answer = ask(server, path, {"model": "tiny", "input": "a", "text": "a", **named})

        assert answer.status_code == 400, answer.text
        assert f"expected no custom logit processor on {path}" in answer.text
        assert "sglang_lp_code" in answer.text


@on_ollama
@streamed
def test_a_refusal_of_ollamas_is_whole_and_in_its_form(server, path, stream):
    bodies = {
        "parameter": {"options": WRONG},
        "budget": {"options": {"thinking_budget": "a"}},
        "misspelled": {"options": {"custom_logits_processor": NAME}},
        "not an option": OURS,
        "type of an option": {"options": {"temperature": "a"}},
        "value of an option": {"options": {"top_p": 7}},
        "type of a seed": {"options": {"seed": "a"}},
        "type of a field": {"options": 5},
    }
    for why, more in bodies.items():
        answer = ask(server, path, {**OLLAMA[path], "stream": stream, **more})

        assert answer.status_code == 400, (why, answer.text)
        assert isinstance(answer.json()["error"], str), (why, answer.text)
    assert answer.headers["content-type"] == "application/json"


@on_ollama
def test_a_stream_of_ollamas_runs_a_processor_and_names_it(server, path):
    answer = ask(server, path, {**OLLAMA[path], "options": OPTIONS})

    assert (answer.status_code, answer.headers[HEADER]) == (200, NAME)
    events = lines(answer)
    told = "".join(one.get("message", {}).get("content", one.get("response")) for one in events)
    assert told.startswith(TEXT)
    assert events[-1]["done"] is True


@on_ollama
@streamed
def test_an_answer_of_ollamas_has_its_report_if_it_is_asked_for(server, path, stream):
    options = {**OPTIONS, "return_meta_info": True}
    answer = ask(server, path, {**OLLAMA[path], "stream": stream, "options": options})

    last = lines(answer)[-1]
    assert last["meta_info"][REPORT]["processors"] == [NAME]


def test_an_instance_of_vertex_is_checked_as_a_body_of_generate(server):
    good = HONOURED["/vertex_generate"]
    instances = good["instances"]
    sampling = {"max_new_tokens": 2}
    bad = {
        "misspelled": {**good, "instances": [{"text": "a", "custom_logits_processor": NAME}]},
        "in an instance": {**good, "instances": [{"text": "a", **OURS}]},
        "at the top": {"instances": instances, **OURS},
        "unknown": {"instances": instances, "parameters": {"max_new_token": 5}},
        "text": {"instances": instances, "parameters": {"text": "a"}},
        "type": {"instances": instances, "parameters": {"return_logprob": "maybe"}},
        "type in a list": {"instances": [{"text": 5}], "parameters": {}},
        "no object": {"instances": instances, "parameters": {"sampling_params": 5}},
    }
    for why, body in bad.items():
        answer = ask(server, "/vertex_generate", body)
        assert answer.status_code == 400, (why, answer.text)
        assert "sglang_lp_code" in answer.text, why
    plain = {"instances": instances, "parameters": {"sampling_params": sampling}}
    assert len(ask(server, "/vertex_generate", plain).json()["predictions"]) == 2


def test_the_schema_of_generate_holds_for_vertex(server):
    pytest.importorskip("sglang.srt.entrypoints.api_contract")  # from 0.5.22 on
    instances = [{"text": "a"}]
    for sampling in ({"is_normalized": True}, {"logit_bias": [1]}, {"skip_special_tokens": 3}):
        body = {"instances": instances, "parameters": {"sampling_params": sampling}}
        answer = ask(server, "/vertex_generate", body)

        assert answer.status_code == 400, (sampling, answer.text)


def test_a_route_without_processors_answers_who_names_none(server):
    assert ask(server, "/tokenize", {"model": "tiny", "prompt": "a"}).status_code == 200
    for path in REFUSED:
        assert "custom logit processor on" not in ask(server, path, {"model": "tiny"}).text


@pytest.mark.parametrize(
    ("path", "field", "known"),
    [
        ("/parse_function_call", "tool_call_parser", "qwen25"),
        ("/separate_reasoning", "reasoning_parser", "qwen3"),
    ],
)
def test_a_parser_that_sglang_lacks_is_refused(server, path, field, known):
    for named in ({}, {field: "qwen99"}, {field: ""}):
        answer = ask(server, path, {"text": "a", **named})
        assert answer.status_code == 400, answer.text
        assert field in answer.text
    assert ask(server, path, {"text": "a", field: known}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
def test_a_response_format_that_is_no_object_is_refused(server, path):
    schema = {"type": "json_schema", "schema": {"properties": {"strict": 5}}}
    for form in (True, "json", [1], {"type": "json_schema", "schema": "a"}, schema):
        answer = ask(server, path, {**HONOURED[path], "response_format": form})

        assert answer.status_code == 400, answer.text
        assert "response_format" in answer.text


def test_a_seed_of_ollamas_is_the_seed_of_sglang(server):
    options = {"num_predict": 2, "seed": 5}
    answer = ask(server, "/api/chat", {**CHAT, "stream": False, "options": options})

    assert answer.status_code == 200, answer.text


def test_a_payload_is_taken_as_a_name_is(server):
    payload = ForcedSequenceLogitProcessor.to_str()
    options = {**OPTIONS, "custom_logit_processor": payload}
    answer = ask(server, "/api/chat", {**CHAT, "stream": False, "options": options})

    assert TEXT in answer.json()["message"]["content"]
