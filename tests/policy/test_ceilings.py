"""A ceiling holds for a number of any class, however a request writes the number."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import NoRepeatNGramLogitsProcessor

from sglang_lp import builtins
from sglang_lp.adapters import adapt
from sglang_lp.adapters.arguments import Setting
from sglang_lp.errors import InvalidParameter, PolicyError
from sglang_lp.links import parse_links
from sglang_lp.params import fields_without_limit
from sglang_lp.policy import Rules
from sglang_lp.policy.ceilings import lower
from sglang_lp.policy.sections import Ceiling, Chosen
from sglang_lp.served_model import ServedModel
from sglang_lp.trust import Policy, Verifier
from support.asked import asked_for

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
    return decided.links[0].params.values


@pytest.mark.parametrize("kind", [ADAPTED, Foreign])
def test_a_number_above_a_ceiling_is_refused_or_lowered_in_any_class(kind):
    asked = asked_for(kind, {"ngram_size": 50})

    with pytest.raises(InvalidParameter, match=r"ngram_size of .*: expected at most 3 .*, got 50"):
        rules_of(kind, "refuse").decide(asked, SERVED)
    assert values_of(rules_of(kind).decide(asked, SERVED)) == {"ngram_size": 3}
    kept = rules_of(kind, "refuse").decide(asked_for(kind, {"ngram_size": 3}), SERVED)
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
        decided = values_of(rules.decide(asked_for(Foreign, given), SERVED))
    except InvalidParameter as error:
        assert error.parameter == "ngram_size"  # noqa: PT017 - refusing it is one of two rights
        return
    assert not refuses
    found = decided["options"]["ngram_size"] if nested else decided["ngram_size"]
    assert float(found) == 3
    assert type(found) is type(value)


def test_other_parameters_pass():
    given = {"n": 50, "text": "50", "list": [50], "on": True, "none": None}

    assert values_of(rules_of(Foreign, "refuse").decide(asked_for(Foreign, given), SERVED)) == given


class Strong:
    """Made of its arguments, with defaults of many kinds."""

    def __init__(self, strength=5.0, size: int = 50, most: int | None = None, word="7", how="all"):
        made.append({"strength": strength, "size": size, "most": most, "word": word, "how": how})

    def __call__(self, input_ids, scores):
        return scores


made = []
STRONG = adapt(Strong, "transformers")
DEFAULTS = {"strength": 5.0, "size": 50, "most": None, "word": "7", "how": "all"}


@given(
    st.sampled_from([*DEFAULTS]),
    st.dictionaries(
        st.sampled_from([*DEFAULTS]),
        st.one_of(st.none(), st.integers(0, 99), st.floats(0, 99), st.just("61")),
    ),
    st.integers(0, 60),
    st.sampled_from(["lower", "refuse"]),
    st.booleans(),
)
def test_a_ceiling_holds_for_all_that_a_constructor_is_given(name, params, most, above, chained):
    processor, sent = STRONG, params
    if chained:
        processor = builtins.ChainLogitProcessor.limited_to(lambda _link: STRONG)
        sent = {f"0.{key}": value for key, value in params.items()} | {"chain": ["m:Strong"]}
    policy = Policy(ceilings={name: Ceiling(at_most=most, above=above)})
    rules = Rules(policy, lambda _payload: processor, [STRONG])
    made.clear()
    try:
        decided = rules.decide(asked_for(processor, sent), SERVED)
    except InvalidParameter:
        assert above == "refuse"
        assert made == []
        return
    STRONG.constructor.make(decided.links[0].params.values, Setting())
    assert len(made) == 2  # at admission, where the arguments are tried, and now
    for one in made:
        assert float(one[name]) <= most
        assert one == {**DEFAULTS, **params, name: one[name]}


def test_null_gets_the_ceiling_in_a_class_that_says_nothing_of_its_numbers():
    for above in ("lower", "refuse"):
        decided = rules_of(Foreign, above).decide(asked_for(Foreign, {"ngram_size": None}), SERVED)
        assert values_of(decided) == {"ngram_size": 3}


def left_out():
    """Yield each number that a built-in has where it is left out, with its class and the others."""
    for processor in builtins.__all__:
        kind = getattr(builtins, processor)
        for name in kind.Params.__struct_fields__:
            others = {key: value for key, value in kind.example.items() if key != name}
            try:
                (link,) = parse_links(kind, others)
            except InvalidParameter:
                continue  # required
            value = getattr(link.params, name, None)
            if type(value) in {int, float}:
                yield pytest.param(link, name, value, id=f"{processor}-{name}")


@pytest.mark.parametrize(("link", "name", "value"), [*left_out()])
def test_a_ceiling_below_the_number_of_a_built_in_holds_where_it_is_left_out(link, name, value):
    for most in (value - 1, value / 2 - 1):
        with pytest.raises(InvalidParameter, match=f"expected at most {most} on this server"):
            lower(link, {name: Ceiling(at_most=most, above="refuse")})
        try:
            held = lower(link, {name: Ceiling(at_most=most)})
        except InvalidParameter:
            continue  # the ceiling is below every number that the parameter can have
        assert getattr(held.params, name) <= most


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

    decided = rules.decide(
        asked_for("ChainLogitProcessor" if chained else processor, params), SERVED
    )
    assert getattr(decided.links[0].params, name) == 6


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

    assert values_of(rules.decide(asked_for(Foreign, {"ngram_size": True}), SERVED)) == {
        "ngram_size": False
    }
    assert values_of(rules.decide(asked_for(Foreign, {"ngram_size": 9}), SERVED)) == {
        "ngram_size": 0
    }


def test_a_name_that_no_class_has_is_an_error_of_the_policy():
    policy = Policy(ceilings={"top_k": Ceiling(at_most=3)})
    known = [one.processor for one in Verifier(policy).allowed]

    with pytest.raises(PolicyError, match=r"ceilings\.top_k: no class of this policy"):
        Rules(policy, lambda _payload: Foreign, known)
    Rules(policy, lambda _payload: ADAPTED, [*known, ADAPTED])
