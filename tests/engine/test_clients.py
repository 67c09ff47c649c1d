"""The requests of clients as they are sent, each on a real server."""

from __future__ import annotations

import httpx
import pytest

from sglang_lp.wire.names import HEADER
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

THINK = "ThinkingBudgetLogitProcessor"
MESSAGES = [{"role": "user", "content": "#"}]
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def post(server, path, body):
    return httpx.post(server.url + path, json=body, trust_env=False, timeout=120)


def generate(params, **fields):
    """Return a body as Dynamo and LocalAI give it to ``Engine`` and ``/generate``."""
    return {
        "input_ids": [4, 9],
        "sampling_params": {"temperature": 0, "max_new_tokens": 12, "custom_params": params},
        **fields,
    }


def chat(params, **fields):
    return {
        "model": "tiny",
        "messages": MESSAGES,
        "max_tokens": 12,
        "custom_params": params,
        **fields,
    }


@on_servers("reasoning")
@pytest.mark.parametrize("stream", [False, True])
def test_a_budget_without_a_processor_is_a_budget(server, stream):
    for path, body in (("/generate", generate), (CHAT, chat)):
        asked = post(server, path, body({"thinking_budget": 5}, stream=stream))
        assert asked.status_code == 200, asked.text
        assert asked.headers[HEADER] == THINK


@on_servers("default")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"thinking_budget": 5}, "expected one known pair of thinking delimiters"),
        ({"thinking_budget": "5"}, "thinking_budget of ThinkingBudgetLogitProcessor"),
        ({"thinking_budgets": 5}, "did you mean 'thinking_budget'?"),
        ({"words": ["x"]}, "takes 'words'; name its processor in custom_logit_processor"),
    ],
)
def test_parameters_that_nothing_takes_are_refused(server, params, why, stream):
    for path, body in (("/generate", generate), (CHAT, chat)):
        refused = post(server, path, body(params, stream=stream))
        assert refused.status_code == 400
        assert why in refused.json().get("message", refused.text)
    several = generate(params, text=["a", "b"])
    del several["input_ids"]
    assert server.post("/generate", several).status == 400
