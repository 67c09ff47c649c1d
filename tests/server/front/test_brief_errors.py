"""A body with many wrong values is refused with few errors, and other bodies as before."""

from __future__ import annotations

import time
from functools import cache
from typing import Annotated, Any

import pydantic_core
import pytest
from fastapi import Body, FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from sglang_lp.server.front.brief_errors import BriefErrors, report_briefly

MANY = 100_000


class Strict(BaseModel, extra="forbid"):
    pass


class Asked(BaseModel):
    text: str | list[str] = "a"
    ids: list[int] | list[list[int]] | None = None
    bias: dict[str, float] | None = None


async def ask(obj: Annotated[Asked, Body()]) -> Any:
    return obj.model_dump()


@pytest.fixture(scope="module")
def client():
    app = FastAPI()
    app.post("/ask")(ask)

    @app.post("/strict")
    async def strict(obj: Annotated[Strict, Body()]) -> Any:
        return obj.model_dump()

    assert report_briefly(app)
    return TestClient(app)


@pytest.mark.parametrize(
    "body",
    [{"text": [1] * MANY}, {"ids": ["x"] * MANY}, {"bias": {str(i): "x" for i in range(MANY)}}],
    ids=["texts", "ids", "bias"],
)
def test_many_wrong_values_have_few_errors_that_name_their_field(client, body):
    answer = client.post("/ask", json=body)

    assert answer.status_code == 422
    found = answer.json()["detail"]
    assert len(found) <= 64
    assert {one["loc"][1] for one in found} == {*body}


def test_the_first_wrong_value_behind_right_ones_is_named(client):
    answer = client.post("/ask", json={"ids": [*range(9), *["x"] * MANY]})

    found = answer.json()["detail"]
    assert ["body", "ids", "list[int]", 9] in [one["loc"] for one in found]


def test_wrong_values_of_many_fields_are_counted(client):
    answer = client.post("/strict", json={str(i): 1 for i in range(MANY)})

    (found,) = answer.json()["detail"]
    assert found["msg"] == f"{MANY} values have a wrong type"


# 300 kB of numbers took /v1/responses 5 s: an error for each of the 31 types of an input, and each
# of its 100,000 entries.
def test_the_inputs_of_sglangs_responses_end_at_the_first_that_is_wrong():
    from pydantic import TypeAdapter
    from sglang.srt.entrypoints.openai.protocol import ResponsesRequest

    adapter = BriefErrors(TypeAdapter(ResponsesRequest))
    right = {"model": "a", "request_id": "a", "input": [{"role": "user", "content": "a"}] * 2}
    right |= {"metadata": {"a": 1}, "created_at": 5}
    assert adapter.validate_python(right) == ResponsesRequest(**right)
    begin = time.process_time()
    with pytest.raises(ValidationError) as failed:
        adapter.validate_python({"model": "a", "input": [1] * MANY})
    assert time.process_time() - begin < 0.5
    assert failed.value.error_count() <= 64


# SGLang's validator of a chat raised AttributeError, which is HTTP 500.
@pytest.mark.parametrize(
    "body", [None, [], "a", b"", 5], ids=["null", "list", "text", "bytes", "5"]
)
@pytest.mark.parametrize("name", ["ChatCompletionRequest", "CompletionRequest"])
def test_a_body_that_is_no_object_has_a_wrong_type(name, body):
    _, brief = adapters(name)
    with pytest.raises(ValidationError):
        brief.validate_python(body, from_attributes=True)


RIGHT = {
    "ChatCompletionRequest": {"messages": [{"role": "user", "content": "a"}]},
    "CompletionRequest": {"model": "a", "prompt": ["a", "b"]},
    "EmbeddingRequest": {"model": "a", "input": [[1, 2], [3]]},
    "ResponsesRequest": {"input": [{"role": "user", "content": "a"}], "request_id": "a"},
    "ScoringRequest": {"query": "a", "items": ["b"], "label_token_ids": [1, 2]},
    "TokenizeRequest": {"prompt": ["a", "b"]},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "user", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "a"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@pytest.mark.filterwarnings("ignore:'data_parallel_rank' is deprecated")
@pytest.mark.parametrize("name", RIGHT)
@given(st.data())
def test_the_same_bodies_are_right_as_without_it(name, data):
    plain, brief = adapters(name)
    body = RIGHT[name] | data.draw(
        st.dictionaries(st.sampled_from(names_of_fields(name)), JSON, max_size=2)
    )

    assert validated(brief, body) == validated(plain, body)


@cache
def adapters(name):
    from pydantic import TypeAdapter
    from sglang.srt.entrypoints.openai import protocol

    plain = TypeAdapter(getattr(protocol, name))
    return plain, BriefErrors(plain)


def names_of_fields(name):
    from sglang.srt.entrypoints.openai import protocol

    return sorted(getattr(protocol, name).model_fields)


def validated(adapter, body):
    """Return the body that an adapter makes, without its time, or the class of its error."""
    try:
        made = adapter.validate_python(body, from_attributes=True).model_dump()
    except Exception as error:  # noqa: BLE001 - SGLang's own validators raise any
        return type(error)
    return {name: value for name, value in made.items() if not name.startswith("created")}


def test_a_pydantic_that_cannot_end_early_is_told(monkeypatch):
    def old(_schema, _config=None):
        raise AssertionError

    monkeypatch.setattr(pydantic_core, "SchemaValidator", old)
    app = FastAPI()
    app.post("/ask")(ask)

    assert not report_briefly(app)


def test_few_errors_and_right_bodies_stay(client):
    assert client.post("/ask", json={"ids": [1, "x"]}).json()["detail"][0]["loc"][1] == "ids"
    right = {"text": ["a"], "ids": [*range(MANY)], "bias": None}
    assert client.post("/ask", json=right).json() == right


def test_the_time_of_a_refusal_is_that_of_one_validation(client):
    def spent(body):
        begin = time.process_time()
        client.post("/ask", json=body)
        return time.process_time() - begin

    right = min(spent({"text": ["a"] * MANY}) for _ in range(3))

    assert min(spent({"text": [1] * MANY}) for _ in range(3)) < 10 * right + 0.1
