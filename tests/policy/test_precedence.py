"""Which thinking budget a request gets, against an oracle that knows only numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.policy import Rules
from sglang_lp.policy.sections import Ceiling, Chosen, Profile
from sglang_lp.served_model import ServedModel
from sglang_lp.trust import Policy, Verifier
from support.asked import asked_for
from support.examples import examples

IDS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}
THINK, OTHER = "ThinkingBudgetLogitProcessor", "LoopBreakerLogitProcessor"
VERIFIER = Verifier(Policy.default())
BAN = Chosen(processor="DisallowedTokensLogitsProcessor", params={"token_ids": [7]})

number = st.integers(0, 40)
wish = st.none() | st.just(-1) | st.just(-30) | number
REFUSED = object()


@st.composite
def policies(draw):
    default = draw(st.sampled_from([None, "thinking", "other"]))
    settable = draw(st.booleans())
    base = draw(wish)
    return {
        "default": default,
        "default_budget": draw(wish) if default == "thinking" else None,
        "effort": draw(st.none() | st.dictionaries(st.sampled_from(["low", "high"]), wish)),
        "room": draw(st.sampled_from([0, 0, 5, 30])),
        "ceiling": draw(st.none() | number),
        "refuse": draw(st.booleans()),
        "always": draw(st.booleans()),
        "profile_budget": base,
        "settable": settable,
    }


@st.composite
def requests(draw):
    return {
        "runs": draw(st.sampled_from(["nothing", "budget", "other", "chain", "profile"])),
        "own": draw(wish),
        "field": draw(wish),
        "effort": draw(st.sampled_from([None, "low", "high", "none"])),
    }


def given_budget(value):
    return {} if value is None else {"thinking_budget": value}


def rules_of(policy):
    thinking = {**IDS, **given_budget(policy["default_budget"])}
    effort = policy["effort"]
    if effort is not None:
        effort = {name: n for name, n in effort.items() if n is not None}
        effort |= {"answer_room": policy["room"]}
    above = "refuse" if policy["refuse"] else "lower"
    ceiling = policy["ceiling"]
    profile = {**IDS, **given_budget(policy["profile_budget"])}
    rules = Rules(
        Policy(
            defaults={
                None: None,
                "thinking": Chosen(processor=THINK, params=thinking),
                "other": Chosen(processor=OTHER),
            }[policy["default"]],
            always=(BAN,) if policy["always"] else (),
            effort=effort,
            ceilings={}
            if ceiling is None
            else {"thinking_budget": Ceiling(at_most=ceiling, above=above)},
            profiles={
                "calm": Profile(
                    processors=(Chosen(processor=THINK, params=profile),),
                    may_set=("thinking_budget",) if policy["settable"] else (),
                )
            },
        ),
        VERIFIER.resolve,
    )
    # A tokenizer that has these delimiters, and nothing else.
    rules.fit(SERVED)
    return rules


class Tokenizer:
    @staticmethod
    def convert_tokens_to_ids(token):
        return {"<think>": 1, "</think>": 2}.get(token)

    @staticmethod
    def convert_ids_to_tokens(token_id):
        return {1: "<think>", 2: "</think>"}.get(token_id)

    @staticmethod
    def get_added_vocab():
        return {"<think>": 1, "</think>": 2}

    @staticmethod
    def encode(_text, *, add_special_tokens):
        return []

    @staticmethod
    def decode(_ids, *, skip_special_tokens):
        return "?"


SERVED = ServedModel(Tokenizer, 50)


def asked_by(request):
    own = given_budget(request["own"])
    payload, params = {
        "nothing": (None, own or None),
        "budget": (THINK, {**IDS, **own}),
        "other": (OTHER, {}),
        "chain": (
            "ChainLogitProcessor",
            {"chain": [OTHER, THINK], **{f"1.{k}": v for k, v in {**IDS, **own}.items()}},
        ),
        "profile": ("calm", own),
    }[request["runs"]]
    return asked_for(payload, params, request["field"], request["effort"])


def expected(policy, request):
    """Return the tokens that a block may have, infinity for no budget at all."""
    runs, concerned = request["runs"], policy["effort"] is not None
    concerned = concerned or policy["ceiling"] is not None or policy["default"] == "thinking"
    concerned = concerned or request["field"] is not None or runs == "nothing"
    asks = request["own"] is not None or request["field"] is not None
    if runs == "profile" and not policy["settable"] and asks:
        return REFUSED
    if not concerned:
        if runs in {"budget", "chain"}:
            return tokens(request["own"])
        if runs == "profile":
            wished = request["own"] if request["own"] is not None else policy["profile_budget"]
            return tokens(wished)
        return math.inf
    asked = [request["own"] if runs != "other" else None, request["field"]]
    effort = (policy["effort"] or {}).get(request["effort"])
    if runs == "profile":
        order = [*asked, effort, policy["profile_budget"]]
        if not policy["settable"]:
            order = [policy["profile_budget"]]
    elif runs == "other":
        order = [*asked, effort]
    else:
        order = [*asked, effort, policy["default_budget"]]
    order = [one for one in order if one is not None]
    budget = tokens(order[0]) if order else math.inf
    top = math.inf if policy["ceiling"] is None else policy["ceiling"]
    asked = [one for one in asked if one is not None]
    if policy["refuse"] and asked and tokens(asked[0]) > top:
        return REFUSED
    return min(budget, top)


def tokens(value):
    return math.inf if value is None or value < 0 else value


def decided_budget(rules, asked):
    try:
        decided = rules.decide(asked, SERVED)
    except InvalidParameter:
        return REFUSED
    if decided is None:
        return math.inf
    links = [(link.processor, link.params) for link in decided.links]
    budgets = [p for kind, p in links if issubclass(kind, ThinkingBudgetLogitProcessor)]
    assert len(budgets) <= 1
    return tokens(budgets[0].thinking_budget) if budgets else math.inf


@examples(4)
@given(policy=policies(), request=requests())
def test_the_first_wish_counts_and_the_ceiling_last(policy, request):
    assert decided_budget(rules_of(policy), asked_by(request)) == expected(policy, request)


@given(policy=policies(), request=requests())
def test_no_request_gets_more_than_the_ceiling_or_sheds_what_is_mandatory(policy, request):
    policy |= {"ceiling": 9, "always": True}
    rules = rules_of(policy)

    try:
        decided = rules.decide(asked_by(request), SERVED)
    except InvalidParameter:
        return
    links = {kind.__name__: params for kind, params, *_ in decided.links}
    assert links["DisallowedTokensLogitsProcessor"].token_ids == (7,)
    assert 0 <= links[THINK].thinking_budget <= 9
    assert "DisallowedTokensLogitsProcessor" not in decided.names


@pytest.mark.parametrize(
    ("decisions", "budget"),
    [
        ({}, 5),
        ({"ceilings": {"thinking_budget": Ceiling(at_most=10)}}, 5),
        ({"ceilings": {"thinking_budget": Ceiling(at_most=3)}}, 3),
        ({"ceilings": {"total_thinking_tokens": Ceiling(at_most=40)}}, 5),
        ({"effort": {"answer_room": 4}}, 5),
    ],
)
def test_a_budget_in_an_operators_chain_keeps_its_number(decisions, budget):
    chain = Chosen(
        processor="ChainLogitProcessor",
        params={"chain": [OTHER, THINK], "1.thinking_budget": 5},
    )
    policy = Policy(defaults=chain, profiles={"calm": Profile(processors=(chain,))}, **decisions)
    rules = Rules(policy, VERIFIER.resolve)
    rules.fit(SERVED)

    for runs in (None, "calm"):
        think = rules.decide(asked_for(runs), SERVED).links[1]
        assert (think.processor, think.params.thinking_budget) == (
            ThinkingBudgetLogitProcessor,
            budget,
        )


def test_a_budget_of_null_leaves_a_profiles_budget_as_it_is():
    calm = Profile(
        processors=(Chosen(processor=THINK, params={"thinking_budget": 5}),),
        may_set=("thinking_budget",),
    )
    rules = Rules(Policy(profiles={"calm": calm}), VERIFIER.resolve)

    (think,) = rules.decide(asked_for("calm", {"thinking_budget": None}), SERVED).links
    assert think.params.thinking_budget == 5
