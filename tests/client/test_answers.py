"""An answer tells which processors ran, and the client notices where one did not."""

import email.message
from types import SimpleNamespace

import httpx
import pytest

from sglang_lp.client import attach, attach_each
from sglang_lp.errors import NotRun

DRY = attach("DRYLogitProcessor")
BOTH = attach([DRY, attach("AllowedTokensLogitProcessor", token_ids=[3])])


def with_header(value):
    message = email.message.Message()
    message["x-sglang-lp"] = value
    return [
        httpx.Response(200, headers={"X-SGLang-LP": value}),
        {"x-sglang-lp": value},
        SimpleNamespace(headers={"X-SGLang-LP": value}),
        message,
    ]


def body(*names):
    return {"text": "a", "meta_info": {"sglang_lp": {"processors": [*names]}}}


@pytest.mark.parametrize(
    "answer",
    [
        *with_header("AllowedTokensLogitProcessor, DRYLogitProcessor"),
        body("DRYLogitProcessor", "AllowedTokensLogitProcessor"),
        [body("DRYLogitProcessor", "AllowedTokensLogitProcessor")] * 2,
        {"choices": [body("DRYLogitProcessor", "AllowedTokensLogitProcessor")] * 2},
    ],
)
def test_an_answer_on_which_all_ran_passes(answer):
    DRY.check(answer)
    BOTH.check(answer)


@pytest.mark.parametrize(
    "answer",
    [
        *with_header("AllowedTokensLogitProcessor"),
        *with_header("none"),
        body(),
        body("AllowedTokensLogitProcessor"),
        [body("DRYLogitProcessor"), body()],
        {"choices": [body("DRYLogitProcessor"), body()]},
    ],
)
def test_an_answer_on_which_one_did_not_run_is_an_error(answer):
    for attached in (DRY, BOTH):
        with pytest.raises(NotRun, match=r"LogitProcessor did not run .* sent without this"):
            attached.check(answer)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (httpx.Response(200), "no header X-SGLang-LP"),
        ({"text": "a", "meta_info": {"id": 1}}, 'meta_info has no "sglang_lp"'),
        ([{"meta_info": {}}], "does not say"),
        ({"choices": [{"index": 0}]}, 'send "return_meta_info": true, or give the response'),
        ({"choices": [body("DRYLogitProcessor"), {}]}, 'send "return_meta_info": true'),
        ({"choices": []}, "no header"),
        ({}, "no header"),
        (None, "expected a response with headers"),
        ("text", "expected a response with headers"),
        (3, "got 3"),
    ],
)
def test_an_answer_that_does_not_tell_is_an_error(answer, why):
    with pytest.raises(NotRun, match=why):
        DRY.check(answer)


MIXED = attach_each([DRY, None, BOTH])
RAN = [body("DRYLogitProcessor"), {"text": "a", "meta_info": {}}]
ALL_RAN = [*RAN, body("DRYLogitProcessor", "AllowedTokensLogitProcessor")]


def test_a_batch_on_which_each_prompt_ran_its_own_passes():
    MIXED.check(ALL_RAN)


@pytest.mark.parametrize("last", [body(), body("DRYLogitProcessor"), {"meta_info": {}}])
def test_a_batch_is_checked_prompt_by_prompt(last):
    with pytest.raises(NotRun):
        MIXED.check([*RAN, last])


@pytest.mark.parametrize(
    "answers", [*with_header("DRYLogitProcessor, AllowedTokensLogitProcessor"), RAN, None]
)
def test_a_batch_is_not_checked_by_a_header_or_by_another_number_of_answers(answers):
    with pytest.raises(NotRun, match="expected a list of 3 answers, one for each prompt, got"):
        MIXED.check(answers)
