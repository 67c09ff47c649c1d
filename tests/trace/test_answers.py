"""Requests and answers are read in every form in which SGLang takes and gives them."""

from __future__ import annotations

import pytest

from sglang_lp.client import attach
from sglang_lp.errors import RequestError
from sglang_lp.served_model import ServedModel
from sglang_lp.trace import read_exchange, trace_answer
from support.fakes.exchanges import ids, tokenizer

WORDS = attach("BadWordsLogitProcessor", words=["sheep"])
PROMPT, OUTPUT = ids(" how many"), ids(" one two")
META = {
    "prompt_tokens": 2,
    "completion_tokens": 2,
    "finish_reason": {"type": "length", "length": 2},
}

FORMS = {
    "generate, text": (
        WORDS.generate_body({"text": " how many"}),
        {"output_ids": OUTPUT, "text": " one two", "meta_info": META},
        0,
    ),
    "generate, ids": (
        WORDS.generate_body({"input_ids": PROMPT}),
        {"output_ids": OUTPUT},
        0,
    ),
    "generate, n = 2": (
        WORDS.generate_body({"text": " how many", "sampling_params": {"n": 2}}),
        [{"output_ids": ids(" a")}, {"output_ids": OUTPUT}],
        1,
    ),
    "generate, several prompts with n = 2": (
        WORDS.generate_body({"text": [" on", " how many"], "sampling_params": {"n": 2}}),
        [{"output_ids": ids(" a")}] * 2 + [{"output_ids": OUTPUT}] * 2,
        3,
    ),
    "generate, lists": (
        {
            "input_ids": [[1], PROMPT],
            "custom_logit_processor": [None, WORDS.payload],
            "sampling_params": [{}, {"custom_params": WORDS.custom_params}],
        },
        [{"output_ids": ids(" a")}, {"output_ids": OUTPUT}],
        1,
    ),
    "generate, routed": (
        WORDS.generate_body({"input_ids": PROMPT}, routed=True),
        {"output_ids": OUTPUT},
        0,
    ),
    "completions, routed": (
        {"prompt": PROMPT, **WORDS.extra_body(routed=True)},
        {"choices": [{"text": " one two", "token_ids": OUTPUT}]},
        0,
    ),
    "engine": (WORDS.engine_kwargs(prompt=" how many"), {"output_ids": OUTPUT}, 0),
    "completions": (
        {"prompt": " how many", **WORDS.extra_body()},
        {"choices": [{"text": " one two", "token_ids": OUTPUT, "prompt_token_ids": PROMPT}]},
        0,
    ),
    "chat": (
        {"messages": [{"role": "user", "content": "how many"}], **WORDS.extra_body()},
        {
            "choices": [
                {
                    "message": {"content": " one two"},
                    "response_token_ids": OUTPUT,
                    "prompt_token_ids": PROMPT,
                    "finish_reason": "stop",
                    "matched_stop": 2,
                }
            ],
            "usage": {"prompt_tokens": 2, "completion_tokens": 2},
        },
        0,
    ),
}


@pytest.mark.parametrize(("request_", "answer", "choice"), FORMS.values(), ids=[*FORMS])
def test_every_form_is_read(request_, answer, choice):
    found = read_exchange(request_, answer, tokenizer(), choice)

    assert (found.prompt_ids, found.output_ids) == (PROMPT, OUTPUT)
    assert found.payload in {WORDS.payload, "sglang_lp.builtins:BadWordsLogitProcessor"}
    assert found.custom_params == WORDS.custom_params
    assert found.notes == []


@pytest.mark.parametrize(
    ("request_", "answer", "choice", "message"),
    [
        ({"text": "a"}, {"text": "b"}, 0, "return_token_ids"),
        ({"messages": []}, {"output_ids": [1]}, 0, "the prompt are unknown"),
        ({"input_ids": [1]}, {"output_ids": [-1]}, 0, "the answer: expected a list of token ids"),
        ({"input_ids": [1]}, {"output_ids": [1 << 40]}, 0, "the answer: expected a list"),
        ({"input_ids": [1.5]}, {"output_ids": [1]}, 0, "the prompt: expected a list"),
        ({"input_ids": [1]}, {"error": {"message": "no"}}, 0, "the answer is an error"),
        ({"input_ids": [1]}, [], 0, "expected a JSON object or a list"),
        ({"input_ids": [1]}, [{"output_ids": [1]}], 3, "there is no answer 3"),
        ({"input_ids": [[1], [2]]}, [{"output_ids": [1]}] * 3, 2, "and the answer more"),
        ([], {"output_ids": [1]}, 0, "the request: expected a JSON object"),
        ({"input_ids": [1], "custom_params": 3}, {"output_ids": [1]}, 0, "custom_params"),
    ],
)
def test_what_is_missing_or_of_another_kind_is_refused(request_, answer, choice, message):
    with pytest.raises(RequestError, match=message):
        read_exchange(request_, answer, None, choice)


def test_the_report_tells_the_phase_of_a_processor_that_names_none():
    answer = {"output_ids": OUTPUT, "meta_info": {"sglang_lp": {"where": ["answer", "everywhere"]}}}

    def read(params):
        request = {"input_ids": PROMPT, "sampling_params": {"custom_params": params}}
        return read_exchange(request, answer).custom_params

    assert read({"text": "a"}) == {"text": "a", "where": "answer"}
    assert read({"where": "thinking"}) == {"where": "thinking"}
    assert read({"chain": ["A", "B"]}) == {"chain": ["A", "B"], "0.where": "answer"}


def test_the_answer_of_another_request_is_noted():
    answer = {"output_ids": OUTPUT, "text": " one two", "meta_info": {**META, "prompt_tokens": 9}}
    (note,) = read_exchange({"input_ids": PROMPT}, answer).notes

    assert "9 prompt_tokens, but 2 were read" in note


def test_ids_that_do_not_spell_the_text_are_noted():
    exchange = read_exchange({"input_ids": PROMPT}, {"output_ids": OUTPUT, "text": " other words"})
    (note,) = trace_answer(None, exchange, ServedModel(tokenizer())).notes

    assert "do not spell its text" in note


@pytest.mark.parametrize(
    "answer",
    [
        {"meta_info": {"output_top_logprobs": [[[-0.1, 5, " a"]], [[-0.2, 6, None]]]}},
        {"logprobs": {"top_logprobs": [{" a": -0.1}, {"token 6": -0.2}]}},
        {
            "logprobs": {
                "content": [
                    {"top_logprobs": [{"token": " a", "logprob": -0.1}]},
                    {"top_logprobs": [{"token": "token 6", "logprob": -0.2}]},
                ]
            }
        },
    ],
)
def test_the_likeliest_tokens_are_read_from_every_form(answer):
    found = read_exchange({"input_ids": PROMPT}, {"output_ids": OUTPUT, **answer})

    assert found.likely == [[(" a", -0.1)], [("token 6", -0.2)]]
