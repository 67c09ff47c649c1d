"""A ceiling holds for a number of any class, however a request writes the number."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import NoRepeatNGramLogitsProcessor

from sglang_lp import builtins
from sglang_lp.adapters import adapt
from sglang_lp.errors import InvalidParameter, PolicyError
from sglang_lp.params import fields_without_limit
from sglang_lp.policy import Asked, Rules
from sglang_lp.policy.decisions import Ceiling, Chosen
from sglang_lp.served_model import ServedModel
from sglang_lp.trust import Policy, Verifier

SERVED = ServedModel(None, 50)
ADAPTED = adapt(NoRepeatNGramLogitsProcessor)
THINK = "ThinkingBudgetLogitProcessor"
IDS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}
FORCED = {"token_ids": [5], "lengths": [1], "eos_token_ids": [3]}


class Foreign:
    def __call__(self, logits, custom_param_list):
        return logits


def rules_of(kind, above="lower", name="ngram_size", most=3):
    policy = Policy(ceilings={name: Ceiling(at_most=most, above=above)})
    return Rules(policy, lambda _payload: kind, [kind])


def values_of(decided):
    return decided.params.values


@pytest.mark.parametrize("kind", [ADAPTED, Foreign])
def test_a_number_above_a_ceiling_is_refused_or_lowered_in_any_class(kind):
    asked = Asked("x", {"ngram_size": 50})

    with pytest.raises(InvalidParameter, match=r"ngram_size of .*: expected at most 3 .*, got 50"):
        rules_of(kind, "refuse").decide(asked, SERVED)
    assert values_of(rules_of(kind).decide(asked, SERVED)) == {"ngram_size": 3}
    kept = rules_of(kind, "refuse").decide(Asked("x", {"ngram_size": 3}), SERVED)
    assert values_of(kept) == {"ngram_size": 3}


spaces = st.text(" \t\n", max_size=2)
over = st.integers(4, 10**6)
spelled = st.one_of(
    over,
    over.map(float),
    st.tuples(spaces, over.map(str), spaces).map("".join),
    over.map(lambda n: f"{n:e}"),
    over.map(lambda n: "".join(chr(0x660 + int(digit)) for digit in str(n))),
    over.map(hex),
    over.map(lambda n: [n]),
    st.sampled_from(["inf", "nan", "Infinity", "1_000", "a lot"]),
)


@given(spelled, st.booleans(), st.booleans())
def test_no_spelling_of_a_number_passes_a_ceiling(value, nested, refuses):
    rules = rules_of(Foreign, "refuse" if refuses else "lower")
    given = {"options": {"ngram_size": value}} if nested else {"ngram_size": value}
    if nested and isinstance(value, list):
        return  # SGLang carries no list there
    try:
        decided = values_of(rules.decide(Asked("x", given), SERVED))
    except InvalidParameter as error:
        assert error.parameter == "ngram_size"  # noqa: PT017 - refusing it is one of two rights
        return
    assert not refuses
    found = decided["options"]["ngram_size"] if nested else decided["ngram_size"]
    assert float(found) == 3
    assert type(found) is type(value)


def test_what_is_left_out_and_other_parameters_pass():
    given = {"ngram_size": None, "n": 50, "text": "50", "list": [50], "on": True}

    assert values_of(rules_of(Foreign, "refuse").decide(Asked("x", given), SERVED)) == given


#: For each parameter of a built-in: the class and its other parameters. ``None`` is no limit.
WITHOUT_LIMIT = {
    "end": ("ScheduledBiasLogitProcessor", {"token_ids": [7]}),
    "within_tokens": ("ForcedWordsLogitProcessor", FORCED),
    "thinking_budget": (THINK, IDS),
    "total_thinking_tokens": (THINK, IDS),
}


@pytest.mark.parametrize("above", ["lower", "refuse"])
@pytest.mark.parametrize("written", [{}, {"none": None}], ids=["left out", "null"])
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("name", WITHOUT_LIMIT)
def test_a_ceiling_holds_where_no_value_means_no_limit(name, chained, written, above):
    processor, params = WITHOUT_LIMIT[name]
    params = {**params, **dict.fromkeys([name] if written else [])}
    policy = Policy(
        ceilings={name: Ceiling(at_most=6, above=above)},
        defaults=Chosen(processor=THINK, params=IDS),
    )
    rules = Rules(policy, Verifier(policy).resolve)
    rules.fit(SERVED)
    if chained:
        params = {"chain": [processor], **{f"0.{key}": value for key, value in params.items()}}

    decided = rules.decide(Asked("ChainLogitProcessor" if chained else processor, params), SERVED)
    links = getattr(decided.params, "links", [(decided.processor, decided.params)])
    assert getattr(links[0][1], name) == 6


def test_every_number_of_a_builtin_that_can_be_none_says_whether_that_is_no_limit():
    # Left out, these have a published setting, or switch a rule off.
    others = {"ngram_size", "window_size", "max_pattern_size", "min_count", "min_pattern_size"}
    others |= {"bias", "final_bias", "soft_thinking_budget", "min_new_share"}
    for name in builtins.__all__:
        params = getattr(builtins, name).Params
        limits = fields_without_limit(params)
        for field in msgspec.inspect.type_info(params).fields:
            kinds = repr(field.type)
            is_number = "NoneType" in kinds and ("IntType" in kinds or "FloatType" in kinds)
            if is_number and "token_id" not in kinds and "TupleType" not in kinds:
                assert (field.name in limits) != (field.name in others), (name, field.name)
                assert field.name not in limits or field.name in WITHOUT_LIMIT


def test_true_counts_as_one_and_a_part_is_rounded_down():
    rules = rules_of(Foreign, most=0.5)

    assert values_of(rules.decide(Asked("x", {"ngram_size": True}), SERVED)) == {
        "ngram_size": False
    }
    assert values_of(rules.decide(Asked("x", {"ngram_size": 9}), SERVED)) == {"ngram_size": 0}


def test_a_name_that_no_class_has_is_an_error_of_the_policy():
    policy = Policy(ceilings={"top_k": Ceiling(at_most=3)})
    known = [one.processor for one in Verifier(policy).allowed]

    with pytest.raises(PolicyError, match=r"ceilings\.top_k: no class of this policy"):
        Rules(policy, lambda _payload: Foreign, known)
    Rules(policy, lambda _payload: ADAPTED, [*known, ADAPTED])
