"""Behind sglang-router, a processor with parameters reaches the server on every endpoint."""

from __future__ import annotations

import subprocess

import httpx
import openai
import orjson
import pytest

from sglang_lp import attach, wire
from sglang_lp.cli import main
from sglang_lp.errors import NotRun
from sglang_lp.wire.names import POLICY_HEADER
from support.servers.asking import openai_client
from support.servers.configurations import on_servers
from support.servers.router import route

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]

TEXT = "The router was here."
FORCED = attach("ForcedSequenceLogitProcessor", text=TEXT)
MESSAGES = [{"role": "user", "content": "Hello."}]
streamed = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def router(server, tmp_path_factory):
    with route([server.url], "round_robin", tmp_path_factory.mktemp("router")) as running:
        yield running


@pytest.fixture(scope="module")
def client(router):
    with openai_client(router.url) as opened:
        yield opened


def model(server):
    return str(server.arguments["model_path"])


@streamed
def test_generate(router, stream):
    body = FORCED.generate_body(
        {"text": "Hello.", "stream": stream, "sampling_params": {"max_new_tokens": 24}}, routed=True
    )
    run = subprocess.run(
        [
            *("curl", "--silent", "--show-error", "--noproxy", "*", "--include", "--json", "@-"),
            router.url + "/generate",
        ],
        input=orjson.dumps(body),
        capture_output=True,
        check=True,
        timeout=60,
    )
    head, _, content = run.stdout.decode().partition("\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.splitlines()[1:])
    if stream:
        content = [line for line in content.splitlines() if line.startswith("data: {")][-1][6:]
    answer = orjson.loads(content)

    assert answer["text"].startswith(TEXT)
    FORCED.check(headers)
    FORCED.check(answer)
    assert answer["meta_info"]["sglang_lp"]["policy"] == headers[POLICY_HEADER.lower()]


@streamed
def test_completions(client, server, stream):
    raw = client.completions.with_raw_response.create(
        model=model(server),
        prompt="Hello.",
        max_tokens=24,
        stream=stream,
        extra_body=FORCED.extra_body(routed=True),
    )
    FORCED.check(raw)
    found = raw.parse()
    text = "".join(one.choices[0].text for one in (found if stream else [found]))
    assert text.startswith(TEXT)


@streamed
def test_chat_completions(client, server, stream):
    raw = client.chat.completions.with_raw_response.create(
        model=model(server),
        messages=MESSAGES,
        max_tokens=24,
        stream=stream,
        extra_body=FORCED.extra_body({"metadata": {"user": "7"}}, routed=True),
    )
    FORCED.check(raw)
    found = raw.parse()
    if stream:
        text = "".join(one.choices[0].delta.content or "" for one in found if one.choices)
    else:
        text = found.choices[0].message.content
    assert text.startswith(TEXT)


@streamed
def test_responses(client, server, stream):
    raw = client.responses.with_raw_response.create(
        model=model(server),
        input="Hello.",
        max_output_tokens=24,
        stream=stream,
        extra_body=FORCED.extra_body(routed=True),
    )
    FORCED.check(raw)
    found = raw.parse()
    if stream:
        text = "".join(one.delta for one in found if one.type == "response.output_text.delta")
    else:
        text = found.output_text
    assert text.startswith(TEXT)


def test_without_it_chat_loses_the_processor_and_the_answer_says_so(client, server):
    raw = client.chat.completions.with_raw_response.create(
        model=model(server), messages=MESSAGES, max_tokens=24, extra_body=FORCED.extra_body()
    )

    assert TEXT not in raw.parse().choices[0].message.content
    with pytest.raises(NotRun, match="names 'none'"):
        FORCED.check(raw)


@streamed
@pytest.mark.parametrize(
    "text",
    [
        wire.fold("ForcedSequenceLogitProcessor", {"token_ids": [1 << 40]}),
        wire.fold(wire.payload_for("os", "abort"), {}),
        '{"processor": 1, "params": {}}',
        "nobody",
    ],
)
def test_a_refusal_reaches_the_client(client, router, server, text, stream):
    asked = {"model": model(server), "stream": stream}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**asked, messages=MESSAGES, metadata={"sglang_lp": text})
    with pytest.raises(openai.BadRequestError):
        client.completions.create(**asked, prompt="a", extra_body={"metadata": {"sglang_lp": text}})
    body = {"text": "a", "custom_logit_processor": text, "stream": stream}
    answer = httpx.post(router.url + "/generate", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 400


def test_metadata_of_others_disturbs_nothing(client, server):
    asked = {"model": model(server), "messages": MESSAGES, "max_tokens": 4, "temperature": 0}

    plain = client.chat.completions.create(**asked)
    noted = client.chat.completions.create(**asked, metadata={"user": "7", "sglang": "x"})
    assert noted.choices[0].message.content == plain.choices[0].message.content


def test_the_doctor_names_the_form_that_each_endpoint_takes(router, capsys):
    code = main(["doctor", "--url", router.url])
    said = capsys.readouterr().out

    assert code == 0, said
    assert said.count("in the routed form") == 3, said
