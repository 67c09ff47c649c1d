"""Several processors for one request."""

import dataclasses

import pytest

from sglang_lp import builtins
from sglang_lp.client import attach
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.links import parse_links
from sglang_lp.processor import LogitProcessor

BAN, FORCE = builtins.DisallowedTokensLogitsProcessor, builtins.ForcedSequenceLogitProcessor


class Own(LogitProcessor):
    """A class of the caller's own."""

    def edit(self, request, edits):
        edits.ban([1])


def test_a_list_becomes_a_chain_with_the_parameters_of_each_link():
    chain = attach(
        [attach(BAN, token_ids=range(2)), attach(FORCE, token_ids=[3], eos_token_ids=[2])]
    )

    assert chain.processor is builtins.ChainLogitProcessor
    assert chain.payload == builtins.ChainLogitProcessor.to_str()
    assert chain.custom_params == {
        "chain": ["DisallowedTokensLogitsProcessor", "ForcedSequenceLogitProcessor"],
        "0.token_ids": [0, 1],
        "1.token_ids": [3],
        "1.eos_token_ids": [2],
    }


def test_a_processor_without_parameters_may_stand_in_the_list_itself():
    chain = attach((Own, "DRYLogitProcessor"))

    assert chain.custom_params == {"chain": [f"{Own.__module__}:Own", "DRYLogitProcessor"]}


def test_the_names_lead_back_to_the_links():
    params = attach([Own, "DRYLogitProcessor"]).custom_params

    links = parse_links(builtins.ChainLogitProcessor, params)

    assert [link.processor for link in links] == [Own, builtins.DRYLogitProcessor]


def test_it_goes_into_a_request_as_any_attachment():
    chain = attach([attach(BAN, token_ids=[5]), "DRYLogitProcessor"])
    given = {"custom_params": {"1.dry_base": 2.0}, "max_new_tokens": 8}

    body = chain.generate_body({"text": "Hi", "sampling_params": given})

    assert body["custom_logit_processor"] == chain.payload
    assert body["sampling_params"] == {
        "max_new_tokens": 8,
        "custom_params": {**chain.custom_params, "1.dry_base": 2.0},
    }


@pytest.mark.parametrize(
    ("links", "params", "says"),
    [
        ([], {}, "attach: expected at least one processor, got an empty list"),
        (["DRYLogitProcessor"] * 9, {}, "chain"),
        ([BAN], {}, "token_ids"),
        (["NoSuchProcessor"], {}, "NoSuchProcessor"),
        ([dataclasses.Field], {}, "Field"),
        (["DRYLogitProcessor"], {"dry_base": 2}, "dry_base"),
        ([["DRYLogitProcessor"]], {}, "chain"),
    ],
)
def test_what_cannot_be_chained_is_refused(links, params, says):
    with pytest.raises(RequestError, match=says):
        attach(links, **params)


def test_a_class_that_travels_as_code_is_refused():
    class Local(LogitProcessor):
        def edit(self, request, edits):
            pass

    with pytest.raises(RequestError, match="travels as code"):
        attach([Local])


def test_a_wrong_parameter_in_the_request_is_refused():
    chain = attach(["DRYLogitProcessor"])

    with pytest.raises(InvalidParameter, match=r"link 0.*dry_bas"):
        chain.extra_body({"custom_params": {"0.dry_bas": 2}})
