"""SGLang's metrics of HTTP requests have one label for all paths that no route answers."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sglang.srt.observability import http_request_metrics

from sglang_lp.server.front import request_labels


@pytest.fixture
def labelled():
    """Return a client of an app, and the labels that SGLang's middleware reads of its requests."""
    labels, found_of = [], http_request_metrics._get_fastapi_request_path
    app = FastAPI()

    @app.middleware("http")
    async def label(request, call_next):
        path, _ = request_labels.bound(found_of(request), request)
        labels.append((path, request.method))
        return await call_next(request)

    @app.get("/models/{name:path}")
    async def models(name: str) -> str:
        return name

    return TestClient(app), labels


def test_paths_and_methods_that_no_route_answers_share_a_label(labelled):
    client, labels = labelled
    asked = [("GET", "/a"), ("POST", "/b"), ("BREW", "/c"), ("BREW", "/models/a")]

    answers = [client.request(*one).status_code for one in asked]

    assert answers == [404, 404, 404, 405]
    assert labels == [("other", "GET"), ("other", "POST"), ("other", "other"), ("other", "other")]


def test_a_route_has_its_own_label(labelled):
    client, labels = labelled
    assert client.get("/models/a/b").json() == "a/b"
    assert labels == [("/models/{name:path}", "GET")]
