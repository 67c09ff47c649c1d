"""A processor, or none, for each prompt of a batch."""

import copy
import json

import numpy as np
import pytest
import torch

from sglang_lp.client import attach, attach_each
from sglang_lp.errors import InvalidParameter, RequestError

BAN = attach("DisallowedTokensLogitsProcessor", token_ids=[3])
THINK = attach("Qwen3ThinkingBudgetLogitProcessor", thinking_budget=5)
MIXED = attach_each([BAN, None, THINK])
PAYLOADS = [BAN.payload, None, THINK.payload]


def test_each_prompt_gets_its_own_processor_and_parameters():
    assert MIXED.generate_body({"text": ["a", "b", "c"]}) == {
        "text": ["a", "b", "c"],
        "sampling_params": [
            {"custom_params": {"token_ids": [3]}},
            {},
            {"custom_params": {"thinking_budget": 5}},
        ],
        "custom_logit_processor": PAYLOADS,
    }


def test_one_sampling_params_serves_every_prompt():
    params = {"temperature": 0, "custom_params": {}}

    sent = MIXED.engine_kwargs(params, prompt=["a", "b", "c"])

    assert params == {"temperature": 0, "custom_params": {}}
    assert sent["sampling_params"] == [
        {"temperature": 0, "custom_params": {"token_ids": [3]}},
        {"temperature": 0, "custom_params": {}},
        {"temperature": 0, "custom_params": {"thinking_budget": 5}},
    ]
    assert sent["custom_logit_processor"] == PAYLOADS
    assert sent["prompt"] == ["a", "b", "c"]


def test_sampling_params_of_each_prompt_are_kept_and_not_changed():
    body = {
        "input_ids": [[1], [2], [3]],
        "sampling_params": [
            {"custom_params": {"token_ids": [3]}},
            {"custom_params": {"mine": 1}},
            {"custom_params": {"new_line_token_id": 9}, "top_k": 4},
        ],
    }
    before = copy.deepcopy(body)

    sent = MIXED.generate_body(body)

    assert body == before
    assert sent["sampling_params"] == [
        {"custom_params": {"token_ids": [3]}},
        {"custom_params": {"mine": 1}},
        {"custom_params": {"new_line_token_id": 9, "thinking_budget": 5}, "top_k": 4},
    ]


def test_the_list_may_be_any_iterable():
    assert attach_each(one for one in (BAN, None, THINK)) == MIXED


IDS = [[1, 2], [3, 4], [5, 6]]
EMBEDS = [[[0.5, 1.0]], [[1.5, 2.0]], [[2.5, 3.0]]]


@pytest.mark.parametrize(
    ("field", "prompts", "sent"),
    [
        ("input_ids", np.array(IDS), IDS),
        ("input_ids", torch.tensor(IDS), IDS),
        ("input_ids", [np.array(ids) for ids in IDS], IDS),
        ("input_ids", [[*np.array(ids)] for ids in IDS], IDS),
        ("input_ids", [np.array([1, 2]), [3], [torch.tensor(4), 5]], [[1, 2], [3], [4, 5]]),
        ("input_embeds", np.array(EMBEDS), EMBEDS),
        ("input_embeds", [torch.tensor(one) for one in EMBEDS], EMBEDS),
        ("text", np.array(["a", "b", "c"]), ["a", "b", "c"]),
    ],
)
def test_prompts_in_arrays_become_lists(field, prompts, sent):
    body = MIXED.generate_body({field: prompts})

    assert json.loads(json.dumps(body))[field] == sent


@pytest.mark.parametrize(
    ("attachments", "message"),
    [
        ([], "expected an entry for each prompt, got none"),
        ([BAN, "DisallowedTokensLogitsProcessor"], "expected attachments of attach.., or None"),
        (BAN, "expected a list .* got Attachment; put it into a list"),
        (None, "expected a list .* got None"),
    ],
)
def test_a_list_of_something_else_is_refused(attachments, message):
    with pytest.raises(RequestError, match=message):
        attach_each(attachments)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": "a"}, "expected 3 prompts in text, got a single one"),
        ({"prompt": "a"}, "expected 3 prompts in prompt, got a single one"),
        ({"input_ids": [1, 2, 3]}, "expected 3 prompts in input_ids, got a single one"),
        ({"input_ids": np.array([1, 2, 3])}, "expected 3 prompts in input_ids, got a single one"),
        ({"input_ids": np.ones((2, 4))}, "expected 3 entries in input_ids, .* got 2"),
        ({"input_embeds": [[0.5]] * 3}, "expected 3 prompts in input_embeds, got a single one"),
        ({"text": ["a", "b"]}, "expected 3 entries in text, one for each attachment, got 2"),
        ({"text": []}, "expected 3 entries in text, one for each attachment, got 0"),
        ({"sampling_params": [{}]}, "expected 3 entries in sampling_params"),
        ({"sampling_params": {"n": 2}}, "no list of processors with n above 1, got n = 2"),
        ({"sampling_params": [{}, {"n": 2}, {}]}, "no list of processors with n above 1"),
        ({"sampling_params": [{}, {}, 5]}, "sampling_params: expected a dict, got 5"),
        ({"custom_logit_processor": "x"}, "has one already"),
    ],
)
def test_a_batch_that_does_not_match_is_refused(body, message):
    with pytest.raises(RequestError, match=message):
        MIXED.generate_body(body)
    with pytest.raises(RequestError, match=message):
        MIXED.engine_kwargs(**body)


def test_another_value_for_an_attached_parameter_is_refused():
    with pytest.raises(InvalidParameter, match=r"^thinking_budget of .*: given twice"):
        MIXED.generate_body(
            {"sampling_params": [{}, {}, {"custom_params": {"thinking_budget": 1}}]}
        )


def test_an_openai_request_cannot_have_parameters_for_each_prompt():
    with pytest.raises(RequestError, match="one custom_params for all its prompts"):
        MIXED.extra_body({"top_k": 1})
