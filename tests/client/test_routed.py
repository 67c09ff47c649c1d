"""The form of a request that sglang-router passes on."""

import json

import pytest

from sglang_lp import wire
from sglang_lp.client import attach
from sglang_lp.errors import InvalidParameter, RequestError

BAN = attach("DisallowedTokensLogitsProcessor", token_ids=[3, 1])
NAME = "sglang_lp.builtins:DisallowedTokensLogitsProcessor"
WHOLE = json.dumps({"processor": NAME, "params": {"token_ids": [3, 1]}}, separators=(",", ":"))


class Foreign:
    """A class of another library."""

    def __call__(self, logits, params):
        return logits


def test_generate_has_all_in_the_text_of_the_processor():
    body = {"text": "a", "sampling_params": {"temperature": 0}}

    assert BAN.generate_body(body, routed=True) == {**body, "custom_logit_processor": WHOLE}
    assert BAN.generate_body({"text": "a"}, routed=True) == {
        "text": "a",
        "custom_logit_processor": WHOLE,
        "sampling_params": {},
    }


def test_the_openai_client_has_all_in_an_entry_of_metadata():
    assert BAN.extra_body(routed=True) == {"metadata": {"sglang_lp": WHOLE}}
    own = {"return_token_ids": True, "metadata": {"user": "7"}}
    assert BAN.extra_body(own, routed=True) == {
        "return_token_ids": True,
        "metadata": {"user": "7", "sglang_lp": WHOLE},
    }
    assert own == {"return_token_ids": True, "metadata": {"user": "7"}}


def test_parameters_of_the_request_go_with_those_of_the_processor():
    think = attach("ThinkingBudgetLogitProcessor", thinking_budget=5)
    given = {"custom_params": {"closing_token_ids": [7]}}
    both = {"closing_token_ids": [7], "thinking_budget": 5}

    sent = think.extra_body(given, routed=True)
    assert wire.unfold(sent["metadata"]["sglang_lp"])[1] == both
    sent = think.generate_body({"sampling_params": given}, routed=True)
    assert wire.unfold(sent["custom_logit_processor"])[1] == both
    assert sent["sampling_params"] == {}
    with pytest.raises(InvalidParameter, match="given twice"):
        think.extra_body({"custom_params": {"thinking_budget": 6}}, routed=True)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: BAN.extra_body({"metadata": {"sglang_lp": "x"}}, routed=True), "has a processor"),
        (lambda: BAN.extra_body({"metadata": "x"}, routed=True), "metadata: expected a dict"),
        (lambda: BAN.extra_body({"custom_logit_processor": "x"}, routed=True), "one already"),
        (lambda: BAN.generate_body({"sampling_params": [{}, {}]}, routed=True), "one prompt"),
    ],
)
def test_a_request_that_cannot_be_sent_so_is_refused(call, why):
    with pytest.raises(RequestError, match=why):
        call()


def test_a_class_of_another_library_goes_by_its_name():
    found = attach(Foreign, target=5).extra_body(routed=True)

    assert wire.unfold(found["metadata"]["sglang_lp"]) == (
        f"{__name__}:Foreign",
        {"target": 5},
    )


def test_code_goes_as_its_payload():
    class Local:
        @classmethod
        def to_str(cls):
            return wire.encode(b"code")

    found = attach(Local, a=1).extra_body(routed=True)

    assert wire.unfold(found["metadata"]["sglang_lp"]) == (wire.encode(b"code"), {"a": 1})


def test_a_chain_goes_whole():
    two = attach([BAN, attach("ForcedSequenceLogitProcessor", token_ids=[7])])

    payload, params = wire.unfold(two.extra_body(routed=True)["metadata"]["sglang_lp"])
    assert payload == "sglang_lp.builtins:ChainLogitProcessor"
    assert params == two.custom_params
