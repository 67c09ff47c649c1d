"""A body with many wrong values is refused with few errors, and other bodies as before."""

from __future__ import annotations

import time
from typing import Annotated, Any

import pytest
from fastapi import Body, FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel

from sglang_lp.server.front.brief_errors import report_briefly

MANY = 100_000


class Asked(BaseModel):
    text: str | list[str] = "a"
    ids: list[int] | list[list[int]] | None = None
    bias: dict[str, float] | None = None


@pytest.fixture(scope="module")
def client():
    app = FastAPI()

    @app.post("/ask")
    async def ask(obj: Annotated[Asked, Body()]) -> Any:
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


def test_wrong_values_behind_right_ones_are_counted(client):
    answer = client.post("/ask", json={"ids": [*range(9), *["x"] * MANY]})

    (found,) = answer.json()["detail"]
    assert found["msg"] == f"{MANY + MANY + 9} values have a wrong type"


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
