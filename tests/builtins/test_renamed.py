"""Old names of parameters work wherever a processor is asked for."""

import pytest

from sglang_lp import builtins
from sglang_lp.client import attach
from sglang_lp.errors import InvalidParameter
from sglang_lp.links import parse_links
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.trust import Policy

OLD_AND_NEW = [
    ("MinLengthLogitProcessor", {"min_tokens": 3}, {"end_token_ids": [2]}),
    ("ForcedSequenceLogitProcessor", {"token_ids": [1]}, {"eos_token_id": 2}),
    ("ChoiceLogitProcessor", {"token_ids": [1], "lengths": [1]}, {"eos_token_id": 2}),
]


@pytest.mark.parametrize(("name", "params", "old"), OLD_AND_NEW)
def test_an_old_name_means_eos_token_ids(name, params, old):
    processor, new = getattr(builtins, name), {"eos_token_ids": [2]}

    assert attach(name, **params, **old).custom_params == params | old
    assert processor.parse_params(params | old) == processor.parse_params(params | new)
    (serving,) = Guard(Policy.default()).admit(Intake(name, params | old)).servings
    assert serving.params.eos_token_ids == (2,)
    with pytest.raises(InvalidParameter, match="given together with eos_token_ids"):
        attach(name, **params, **old, **new)


@pytest.mark.parametrize(("name", "params", "old"), OLD_AND_NEW)
def test_an_old_name_works_in_a_chain(name, params, old):
    chain = attach([attach(name, **params, **old)])

    (link,) = parse_links(chain.processor, chain.custom_params)
    assert link.params.eos_token_ids == (2,)
