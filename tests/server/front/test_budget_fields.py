"""The thinking budgets that clients of other engines send, in the bodies of their requests."""

from types import SimpleNamespace

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.policy import Asked, Rules
from sglang_lp.served_model import ServedModel
from sglang_lp.server.front.budget_fields import find_budget, make_read_budget
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.reserved_keys import BUDGET_FIELD
from sglang_lp.trust import Policy, Verifier

IDS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}
THINK = "ThinkingBudgetLogitProcessor"


@pytest.mark.parametrize(
    ("body", "budget"),
    [
        ({}, None),
        (None, None),
        ([1], None),
        ({"thinking_budget": None}, None),
        ({"thinking_budget": 0}, 0),
        ({"thinking_budget": -1}, -1),
        ({"thinking_token_budget": 4}, 4),
        ({"thinking_budget_tokens": 4}, 4),
        ({"reasoning": {"max_tokens": 4, "effort": "low"}}, 4),
        ({"reasoning": {"effort": "low"}}, None),
        ({"reasoning": "low"}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 4}}, 4),
        ({"thinking": {"type": "disabled", "budget_tokens": 4}}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": True}, None),
        # In the order of the table.
        ({"thinking_budget_tokens": 9, "thinking_budget": 4}, 4),
        ({"thinking": {"budget_tokens": 9}, "reasoning": {"max_tokens": 4}}, 4),
        ({"thinking_budget": None, "thinking_token_budget": 4}, 4),
    ],
)
def test_a_budget_is_found_in_the_fields_of_clients(body, budget):
    assert find_budget(body) == budget


@pytest.mark.parametrize("value", ["512", 1.5, True, [4], 2**80])
def test_what_is_no_number_of_tokens_is_refused(value):
    with pytest.raises(RequestError, match=r"thinking_token_budget: expected a whole number"):
        find_budget({"thinking_token_budget": value})
    with pytest.raises(RequestError, match=r"reasoning.max_tokens: expected a whole number"):
        find_budget({"reasoning": {"max_tokens": value}})


def read(body, *, enabled=True, **asked):
    arguments = SimpleNamespace(enable_custom_logit_processor=enabled)
    serving = SimpleNamespace(tokenizer_manager=SimpleNamespace(server_args=arguments))
    request = SimpleNamespace(**{"custom_params": None, "custom_logit_processor": None, **asked})
    raw = SimpleNamespace(_json=body)
    make_read_budget(Guard(Policy.default()))(serving, request, raw)
    return request.custom_logit_processor, request.custom_params


def test_a_request_without_a_processor_gets_the_budgets():
    assert read({"thinking_budget": 4}) == (THINK, {BUDGET_FIELD: 4})
    assert read({"thinking_budget": 4}, custom_logit_processor="X") == ("X", {BUDGET_FIELD: 4})
    assert read({}) == (None, None)


def test_a_server_that_runs_no_processors_is_left_alone():
    assert read({"thinking_budget": 4}, enabled=False) == (None, None)


def rules_of(**decisions):
    rules = Rules(Policy(**decisions), Verifier(Policy.default()).resolve)
    rules.fit(ServedModel(None, 50))
    return rules


def test_a_field_counts_without_any_decision_and_after_the_parameter():
    served = ServedModel(None, 50)
    rules = rules_of()

    assert rules.decide(Asked(THINK, IDS, 4), served).params.thinking_budget == 4
    own = {**IDS, "thinking_budget": 7}
    assert rules.decide(Asked(THINK, own, 4), served).params.thinking_budget == 7


def test_the_operator_can_leave_the_fields_to_sglang():
    assert rules_of().reads_fields
    off = rules_of(effort={"fields": False})
    assert not off.reads_fields
    assert off.is_empty
    assert not off.reads_effort
