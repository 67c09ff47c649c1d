"""SGLang's own request classes accept the fields that the client makes."""

import json

import pytest

pytest.importorskip("sglang")

from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.sampling.custom_logit_processor import (
    Qwen3ThinkingBudgetLogitProcessor as StockThinkingBudget,
)
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_lp import builtins
from sglang_lp.client import attach, attach_each

THINK = attach("Qwen3ThinkingBudgetLogitProcessor", thinking_budget=5)
BAN = attach("DisallowedTokensLogitsProcessor", token_ids=(3, 1))
THINKING = {"thinking_budget": 5}


def received(body):
    """Return the requests that SGLang makes of a JSON body."""
    request = GenerateReqInput(**json.loads(json.dumps(body)))
    request.normalize_batch_and_arguments()
    if request.is_single:
        return [request]
    return [request[i] for i in range(request.batch_size * request.parallel_sample_num)]


def seen(body):
    """Return the payload and the parameters of each request."""
    return [
        (one.custom_logit_processor, SamplingParams(**one.sampling_params).custom_params)
        for one in received(body)
    ]


def test_a_single_prompt_reaches_sglang_whole():
    body = {"text": "a", "sampling_params": {"temperature": 0.5}}

    [request] = received(THINK.generate_body(body))

    assert request.custom_logit_processor == THINK.payload
    assert request.sampling_params == {"temperature": 0.5, "custom_params": THINKING}


@pytest.mark.parametrize(
    "body",
    [
        {"text": ["a", "b"]},
        {"input_ids": [[1], [2]], "sampling_params": {"top_k": 1}},
        {"text": ["a", "b"], "sampling_params": [{}, {"temperature": 0}]},
        {"text": "a", "sampling_params": {"n": 2}},
    ],
)
def test_every_prompt_and_every_sample_gets_the_processor(body):
    assert seen(THINK.generate_body(body)) == [(THINK.payload, THINKING)] * 2


def test_a_batch_of_different_processors_reaches_sglang_in_order():
    body = attach_each([THINK, None, BAN]).generate_body({"text": ["a", "b", "c"]})

    assert seen(body) == [
        (THINK.payload, THINKING),
        (None, None),
        (BAN.payload, {"token_ids": [3, 1]}),
    ]


def test_sglang_refuses_a_list_of_processors_with_n_above_1():
    body = attach_each([THINK, BAN]).generate_body({"text": ["a", "b"]})
    for params in body["sampling_params"]:
        params["n"] = 2

    with pytest.raises(ValueError, match="list custom_logit_processor with parallel_sample_num"):
        received(body)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": "a"}]}),
        (CompletionRequest, {"prompt": ["a", "b"]}),
    ],
)
def test_an_openai_request_carries_both_at_its_top(kind, fields):
    extra = THINK.extra_body({"top_k": 3, "custom_params": {"new_line_token_id": 9}})

    request = kind(model="m", **fields, **extra)

    assert request.custom_logit_processor == THINK.payload
    assert request.custom_params == {"new_line_token_id": 9, "thinking_budget": 5}
    assert request.top_k == 3


def test_a_completion_request_takes_no_list_of_processors():
    with pytest.raises(ValueError, match="custom_logit_processor"):
        CompletionRequest(model="m", prompt=["a", "b"], custom_logit_processor=[BAN.payload] * 2)


def test_a_class_of_sglang_passes_with_sglang_s_own_text():
    stock = attach(StockThinkingBudget, thinking_budget=5)

    assert stock.payload == StockThinkingBudget.to_str()
    assert stock.custom_params == THINKING


@pytest.mark.parametrize("name", builtins.__all__)
def test_sglang_itself_reads_and_writes_the_payload(name):
    cls = getattr(builtins, name)
    payload = CustomLogitProcessor.to_str.__func__(cls)

    assert cls.to_str() == payload
    assert type(CustomLogitProcessor.from_str(payload)) is cls
