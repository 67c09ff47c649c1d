"""Loss masks and raw logprobs, which a trainer reads from an answer."""

import pytest

from sglang_lp.client import attach, loss_mask, raw_logprobs
from sglang_lp.errors import NotRun, RequestError

BAN = attach("DisallowedTokensLogitsProcessor", token_ids=[3])


def answer(tokens=5, **report):
    told = {"forced_at": [], "truncated": None, **report}
    return {
        "meta_info": {"completion_tokens": tokens, "sglang_lp": told},
    }


def test_the_mask_has_a_number_for_each_token_and_forced_ones_are_0():
    assert loss_mask(answer()) == [1] * 5
    assert loss_mask(answer(forced_at=[[0, 1], [3, 5]])) == [0, 1, 1, 0, 0]


def test_there_is_no_mask_where_not_all_that_was_forced_is_told():
    with pytest.raises(NotRun, match=r"only up to token 3 of 5"):
        loss_mask(answer(truncated=3))
    for untold in ({}, {"meta_info": {"completion_tokens": 5}}):
        with pytest.raises(NotRun, match=r'^loss_mask: expected meta_info with "sglang_lp"'):
            loss_mask(untold)


@pytest.mark.parametrize("missing", ["forced_at", "truncated", "completion_tokens"])
def test_a_report_of_an_older_server_makes_no_mask(missing):
    told = answer()
    for said in (told["meta_info"], told["meta_info"]["sglang_lp"]):
        said.pop(missing, None)

    with pytest.raises(NotRun, match=f"^loss_mask: expected .* got one without '{missing}'"):
        loss_mask(told)


def test_logprobs_before_processors_are_sglangs_own_but_where_something_was_edited():
    told = answer(3, raw_logprobs=[[0, -7.5], [2, -1.25]])
    told["meta_info"]["output_token_logprobs"] = [[0.0, 10, None], [-2.0, 11, None], [-1.0, 12, ""]]

    assert raw_logprobs(told) == [-7.5, -2.0, -1.25]


@pytest.mark.parametrize("missing", ["raw_logprobs", "output_token_logprobs"])
def test_logprobs_that_nobody_asked_for_are_missing(missing):
    told = answer(1, raw_logprobs=[])
    told["meta_info"]["output_token_logprobs"] = [[0.0, 10, None]]
    for said in (told["meta_info"], told["meta_info"]["sglang_lp"]):
        said.pop(missing, None)

    with pytest.raises(NotRun, match=f"^raw_logprobs: expected .* without '{missing}'; ask for it"):
        raw_logprobs(told)


def test_a_request_may_ask_for_them_beside_its_parameters():
    asked = {"sampling_params": {"custom_params": {"raw_logprobs": True}}}
    sent = BAN.generate_body(asked)["sampling_params"]["custom_params"]

    assert sent == {"token_ids": [3], "raw_logprobs": True}
    asked["sampling_params"]["custom_params"] = {"raw_logprobs": "yes"}
    with pytest.raises(RequestError, match=r"^raw_logprobs: expected true or false, got 'yes'"):
        BAN.generate_body(asked)
