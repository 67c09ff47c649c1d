"""Budgets and efforts are found in SGLang's own types, where its front ends still have them."""

from types import SimpleNamespace

import pytest

from sglang_lp.server.gate.reserved_keys import EFFORT, check_origin
from sglang_lp.server.startup import installation
from sglang_lp.server.startup.hooks import put_in_place

# SGLang reads its own deprecated fields.
pytestmark = pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning")

CHAT = {"model": "m", "messages": [{"role": "user", "content": "?"}]}


@pytest.fixture
def reading(sglang, tmp_path, monkeypatch):
    """SGLang's types with the hooks of a policy that has efforts."""
    from sglang.srt.entrypoints.anthropic import protocol as anthropic
    from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
    from sglang.srt.entrypoints.openai import protocol
    from sglang.srt.plugins.hook_registry import HookRegistry

    policy = tmp_path / "policy.toml"
    policy.write_text("[effort]\nlow = 5")
    monkeypatch.setenv(installation.POLICY_VARIABLE, str(policy))
    put_in_place()
    HookRegistry.apply_hooks()
    assert set(installation.status().values()) == {"live"}
    return SimpleNamespace(protocol=protocol, anthropic=anthropic, serving=AnthropicServing)


def found_in(sampling):
    check_origin(sampling["custom_params"])
    return sampling["custom_params"]


@pytest.mark.parametrize("asked", [{"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}])
def test_chat_completions(reading, asked):
    request = reading.protocol.ChatCompletionRequest(**CHAT, **asked, custom_params={"a": 1})

    sampling = request.to_sampling_params([], {})
    assert found_in(sampling) == {"a": 1, EFFORT: "low"}
    plain = reading.protocol.ChatCompletionRequest(**CHAT)
    assert found_in(plain.to_sampling_params([], {})) is None


def test_responses(reading):
    request = reading.protocol.ResponsesRequest(model="m", input="?", reasoning={"effort": "low"})

    assert found_in(request.to_sampling_params(100)) == {EFFORT: "low"}
    plain = reading.protocol.ResponsesRequest(model="m", input="?")
    assert plain.to_sampling_params(100).get("custom_params") is None


def test_anthropic_messages(reading):
    serving = reading.serving.__new__(reading.serving)
    serving._merge_inline_system = False
    serving.openai_serving_chat = SimpleNamespace(apply_reasoning_enabled=lambda *_args: None)
    request = reading.anthropic.AnthropicMessagesRequest(
        **CHAT,
        max_tokens=5,
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "xhigh"},
    )

    chat = serving._convert_to_chat_completion_request(request)
    # The budget is read from the body itself: test_fields.py.
    assert found_in(chat.to_sampling_params([], {})) == {EFFORT: "xhigh"}
