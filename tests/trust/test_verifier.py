"""Payloads that the default policy accepts, and the refusal of all others."""

import pytest

from sglang_lp import builtins, wire
from sglang_lp.errors import PayloadRefused, RefusalReason
from sglang_lp.trust import Policy, Verifier


@pytest.fixture(scope="module")
def verifier():
    return Verifier(Policy.default())


@pytest.mark.parametrize("name", builtins.__all__)
def test_a_builtin_is_found_by_payload_by_full_name_and_by_short_name(verifier, name):
    cls = getattr(builtins, name)

    assert verifier.resolve(cls.to_str()) is cls
    assert verifier.resolve(f"sglang_lp.builtins:{name}") is cls
    assert verifier.resolve(name) is cls


def test_a_stock_payload_runs_the_toolkits_class_of_the_same_name(verifier):
    name = "DisallowedTokensLogitsProcessor"
    stock = wire.payload_for("sglang.srt.sampling.custom_logit_processor", name)

    assert verifier.resolve(stock) is builtins.DisallowedTokensLogitsProcessor
    assert verifier.lookup(stock).payload == builtins.DisallowedTokensLogitsProcessor.to_str()


@pytest.mark.parametrize("payload", [None, 3, b"x", [], {}, "", "{1}", "null", "os:system"])
def test_anything_else_is_refused(verifier, payload):
    with pytest.raises(PayloadRefused):
        verifier.resolve(payload)


def test_a_class_that_is_not_allowed_is_named_in_the_refusal(verifier):
    with pytest.raises(PayloadRefused, match="'os:system'") as caught:
        verifier.resolve(wire.payload_for("os", "system"))
    assert caught.value.reason is RefusalReason.NOT_ALLOWED
