"""The tokenizer that a server tells: the whole of it, in small parts, to clients with the key."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI
from sglang.srt.utils.auth import add_api_key_middleware

from sglang_lp.client.models import read_model
from sglang_lp.server.front import tokenizer as front
from sglang_lp.server.front.listing import add_list
from sglang_lp.server.front.tokenizer import add_tokenizer
from sglang_lp.server.gate.guard import Guard
from sglang_lp.text.vocabulary import vocabulary_of
from sglang_lp.trust import Policy
from sglang_lp.wire.names import LIST_PATH, TOKENIZER_PATH
from support.fakes.exchanges import tokenizer


class Written:
    """A tokenizer of which only the JSON counts."""

    def __init__(self, to_str):
        self.to_str = to_str


class Wrapped:
    """A tokenizer of ``transformers``."""

    backend_tokenizer = tokenizer()


@pytest.fixture(autouse=True)
def _nothing_kept():
    front.write_tokenizer.cache_clear()


def app_for(served):
    guard = Guard(Policy.default())
    guard.server.tokenizer, guard.server.vocab_size = served, 512
    guard.server.eos_token_ids = (3,)
    app = FastAPI()
    add_list(app, guard, lambda: True)
    add_tokenizer(app, guard)
    return app


def asked(app, path=TOKENIZER_PATH, **headers):
    async def ask():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


def test_the_answer_is_the_whole_tokenizer_with_its_end_tokens():
    told = asked(app_for(Wrapped()))
    model = read_model(told.json())

    assert int(told.headers["Content-Length"]) == len(told.content)
    assert (model.vocab_size, model.eos_token_ids) == (512, (3,))
    assert vocabulary_of(model.tokenizer).tokens == vocabulary_of(tokenizer()).tokens
    assert vocabulary_of(model.tokenizer).names == vocabulary_of(tokenizer()).names
    for text in (" how many sheep", "<think> é 世界</think><|end|>"):
        assert model.tokenizer.encode(text).ids == tokenizer().encode(text).ids


def test_no_part_is_large_so_that_little_waits_for_a_client_that_does_not_read():
    parts = []

    async def ask():
        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            parts.append(message.get("body", b""))

        scope = {"type": "http", "method": "GET", "path": TOKENIZER_PATH, "headers": []}
        scope |= {"query_string": b"", "http_version": "1.1", "asgi": {"spec_version": "2.4"}}
        await app_for(Written(lambda: '"' + "é" * 100_000 + '"'))(scope, receive, send)

    asyncio.run(ask())

    assert sum(map(len, parts)) > 200_000
    assert max(map(len, parts)) <= 1 << 16


def broken():
    raise Exception("Custom PreTokenizer cannot be serialized")  # noqa: TRY002 - as it does


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (None, "this server has no tokenizer (--skip-tokenizer-init)"),
        (object(), "(object) cannot be written as a tokenizer.json"),
        (Written(broken), "Custom PreTokenizer cannot be serialized"),
        (Written(lambda: " " * 2_500), "at most 0 MiB"),
    ],
)
def test_a_tokenizer_that_cannot_be_told_is_a_400_that_says_why(served, message, monkeypatch):
    monkeypatch.setattr(front, "MAX_TOKENIZER_BYTES", 2_000)
    told = asked(app_for(served))

    assert told.status_code == 400
    error = told.json()["error"]
    assert message in error["message"]
    assert (error["sglang_lp_code"], error["param"]) == ("unsupported", None)


@pytest.mark.parametrize(("text", "status"), [("{}", 200), (" " * 2_500, 400)])
def test_the_tokenizer_is_written_once_for_all_clients(text, status, monkeypatch):
    monkeypatch.setattr(front, "MAX_TOKENIZER_BYTES", 2_000)
    written = []

    def to_str():
        written.append(1)
        return text

    app = app_for(Written(to_str))
    assert [asked(app).status_code for _ in range(2)] == [status, status]
    assert written == [1]


@pytest.mark.filterwarnings("ignore:ORJSONResponse is deprecated")  # SGLang uses it
@pytest.mark.parametrize("path", [LIST_PATH, TOKENIZER_PATH])
def test_the_api_key_of_the_server_protects_both_endpoints(path):
    app = app_for(tokenizer())
    add_api_key_middleware(app, api_key="secret", admin_api_key=None)

    assert asked(app, path).status_code == 401
    assert asked(app, path, Authorization="Bearer wrong").status_code == 401
    assert asked(app, path, Authorization="Bearer secret").status_code == 200
