"""Ceilings, profiles and mandatory processors: what holds, and the ways around it."""

import pytest

from sglang_lp.adapters import as_processor
from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking.known import Family
from sglang_lp.errors import InvalidParameter, PayloadRefused, PolicyError, RequestError
from sglang_lp.policy import Rules
from sglang_lp.policy.sections import Ceiling, Chosen, Profile
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ReasoningFormat, ServedModel
from sglang_lp.trust import Policy, Verifier
from support.asked import asked_for
from support.models.vocabularies import one_token_a_byte

IDS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}
THINK = "ThinkingBudgetLogitProcessor"
DEFAULT = Chosen(processor=THINK, params={**IDS, "thinking_budget": 5})
BAN = Chosen(processor="DisallowedTokensLogitsProcessor", params={"token_ids": [7]})


SERVED = ServedModel(None, 50)


class Dense(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits


class Foreign:
    def __call__(self, logits, custom_param_list):
        return logits


def rules_of(find=None, **decisions):
    policy = Policy(**decisions)
    rules = Rules(policy, find or Verifier(Policy.default()).resolve)
    rules.fit(SERVED)
    return rules


def links_of(decided):
    return {link.processor: link.params for link in decided.links}


def named(decided):
    return [kind.__name__ for kind in links_of(decided)]


CAPPED = {"defaults": DEFAULT, "ceilings": {"thinking_budget": Ceiling(at_most=10)}}


def test_without_decisions_a_request_runs_what_it_brings():
    rules = rules_of()

    assert rules.decide(asked_for(None, None, None, "low"), SERVED) is None
    decided = rules.decide(asked_for(THINK, {**IDS, "thinking_budget": 3}), SERVED)
    assert (named(decided), decided.links[0].params.thinking_budget) == ([THINK], 3)


@pytest.mark.parametrize("decisions", [{}, {"always": (BAN,)}], ids=["nothing", "a ban"])
def test_a_budget_without_a_processor_is_a_budget_whatever_the_operator_decided(decisions):
    rules, tokenizer = rules_of(**decisions), one_token_a_byte("<think>", "</think>")
    served = ServedModel.of(tokenizer, 300, [])

    budget = links_of(rules.decide(asked_for(None, {"thinking_budget": 3}), served))
    assert budget[ThinkingBudgetLogitProcessor].thinking_budget == 3
    assert rules.decide(asked_for(None, {"thinking_budget": 3}), served).names == (THINK,)
    for none in ({"thinking_budget": -1}, {"thinking_budget": None}, {}, None):
        decided = rules.decide(asked_for(None, none), served)
        assert decided is None if not decisions else decided.names == ()
    with pytest.raises(InvalidParameter, match=r"thinking_budget of Thinking.*got "):
        rules.decide(asked_for(None, {"thinking_budget": "many"}), served)
    with pytest.raises(InvalidParameter, match="thinking_start"):  # no delimiters
        rules.decide(
            asked_for(None, {"thinking_budget": 3}), ServedModel.of(one_token_a_byte(), 300)
        )


def test_a_budget_runs_only_where_its_class_is_allowed_or_the_operator_has_one():
    ask = asked_for(None, {"thinking_budget": 3}, 4)
    only_bans = Verifier(Policy(builtins=False)).resolve

    for decisions in ({}, {"always": (BAN,)}):
        with pytest.raises(PayloadRefused, match=f"thinking_budget: .* does not allow {THINK}"):
            rules_of(only_bans, **decisions).decide(ask, SERVED)
    decided = rules_of(only_bans, **CAPPED).decide(ask, SERVED)
    assert decided.links[0].params.thinking_budget == 3


@pytest.mark.parametrize(
    ("default", "given", "why"),
    [
        (None, {"thinking_budgets": 3}, "takes 'thinking_budgets'; did you mean 'thinking_budget'"),
        (None, {"thinking_budget": 3, "closing": "x"}, "takes 'closing'; name its processor in"),
        (DEFAULT, {"thinking_budgets": 3}, "did you mean 'thinking_budget'"),
        (DEFAULT, {"soft_budget": 3}, "did you mean 'soft_thinking_budget'"),
        (DEFAULT, {"words": ["x"]}, "takes 'words'; name its processor in"),
        (DEFAULT, {"x" * 5000: 1}, "takes 'xxx"),
    ],
)
def test_a_parameter_that_no_processor_takes_is_refused(default, given, why):
    with pytest.raises(RequestError, match=why):
        rules_of(defaults=default).decide(asked_for(None, given), SERVED)


def test_a_request_names_no_link_of_the_operators_chain():
    params = {"chain": [BAN.processor], "0.token_ids": [7]}
    chain = Chosen(processor="ChainLogitProcessor", params=params)
    rules = rules_of(defaults=chain)
    assert named(rules.decide(asked_for(None, {}), SERVED)) == named(
        rules_of().decide(asked_for("ChainLogitProcessor", params), SERVED)
    )
    with pytest.raises(RequestError, match="chain"):
        rules.decide(asked_for(None, {"chain": ["MinLengthLogitProcessor"]}), SERVED)
    with pytest.raises(PolicyError, match=r"profiles.a.may_set: .* 'chain', which none"):
        rules_of(profiles={"a": Profile(processors=(chain,), may_set=("chain",))})


def test_a_request_sets_todays_name_of_a_parameter_that_the_policy_has_under_its_old_name():
    params = {"min_tokens": 3, "end_token_ids": [2]}
    old = Chosen(processor="MinLengthLogitProcessor", params=params)
    profile = Profile(processors=(old,), may_set=("eos_token_ids",))
    rules = rules_of(defaults=old, profiles={"a": profile})

    for runs in (None, "a"):
        (mine,) = rules.decide(asked_for(runs, {"eos_token_ids": [5]}), SERVED).links
        (operators,) = rules.decide(asked_for(runs, {}), SERVED).links
        assert ({*mine.params.eos_token_ids}, {*operators.params.eos_token_ids}) == ({5}, {2})
    both = Chosen(processor=old.processor, params={**params, "eos_token_ids": [5]})
    with pytest.raises(PolicyError, match=r"defaults.params.end_token_ids: .* give eos_token_ids"):
        rules_of(defaults=both)


def test_parameters_that_the_server_adds_to_every_request_are_nobodys_mistake():
    rules = rules_of()
    rules.preferred = frozenset({"dry_base"})

    assert rules.decide(asked_for(None, {"dry_base": 2}), SERVED) is None


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"thinking_start_token_id": 8, "thinking_end_token_id": 9}, "served model's thinking"),
        ({**IDS, "closing_token_ids": [5] * 11}, "closing_token_ids.*at most 10 on"),
    ],
)
def test_a_budget_that_watches_or_writes_something_else_does_not_pass_a_ceiling(params, why):
    with pytest.raises(InvalidParameter, match=why):
        rules_of(**CAPPED).decide(asked_for(THINK, {**params, "thinking_budget": 3}), SERVED)


@pytest.mark.parametrize("ceiling", ["thinking_budget", "total_thinking_tokens"])
@pytest.mark.parametrize("above", ["lower", "refuse"])
@pytest.mark.parametrize("where", ["alone", "in a chain", "beside the default"])
def test_a_request_under_a_ceiling_does_not_say_what_ends_its_thinking(ceiling, above, where):
    rules = rules_of(defaults=DEFAULT, ceilings={ceiling: Ceiling(at_most=8, above=above)})
    own = {"thinking_budget": 8, "tool_start_token_ids": [9]}
    asked = {
        "alone": asked_for(THINK, {**IDS, **own}),
        "in a chain": asked_for(
            "ChainLogitProcessor",
            {"chain": [THINK], **{f"0.{name}": value for name, value in {**IDS, **own}.items()}},
        ),
        "beside the default": asked_for(None, own),
    }[where]

    with pytest.raises(InvalidParameter, match=r"tool_start_token_ids.*leave them out"):
        rules.decide(asked, SERVED)


def test_tool_starts_that_the_operator_gives_count_for_every_class_and_request():
    served = ServedModel(one_token_a_byte("<think>", "</think>", "<tool_call>", "<call>"), 400)
    ids = {"thinking_start_token_id": 256, "thinking_end_token_id": 257}
    rules = Rules(
        Policy(
            defaults=Chosen(processor=THINK, params={**ids, "tool_start_token_ids": [259]}),
            ceilings={"thinking_budget": Ceiling(at_most=8)},
        ),
        Verifier(Policy()).resolve,
    )
    rules.fit(served)

    default = rules.decide(asked_for(None), served).links[0].params
    same = (
        rules.decide(asked_for(THINK, {**ids, "tool_start_token_ids": [259]}), served)
        .links[0]
        .params
    )
    family = rules.decide(asked_for(OfAFamily, {"thinking_budget": 5}), served).links[0].params
    assert default.finder.delimiters == same.finder.delimiters == family.finder.delimiters
    assert (family.thinking_budget, family.tool_start_token_ids) == (5, (259,))
    with pytest.raises(InvalidParameter, match="tool_start_token_ids"):
        rules.decide(asked_for(THINK, {**ids, "tool_start_token_ids": []}), served)


FAMILY = Family("OfAFamily", "", "<think>", (256,), "</think>", (257,), None, "", ("<tool_call>",))


class OfAFamily(ThinkingBudgetLogitProcessor, family=FAMILY):
    pass


def test_a_message_counts_as_thinking_under_a_ceiling():
    params = {**IDS, "thinking_budget": 1000, "closing_token_ids": [5] * 4}

    assert (
        rules_of(**CAPPED).decide(asked_for(THINK, params), SERVED).links[0].params.thinking_budget
        == 6
    )


def test_what_comes_before_the_end_counts_as_thinking_under_a_ceiling():
    params = {**IDS, "thinking_budget": 1000, "new_line_token_id": 4}

    assert (
        rules_of(**CAPPED).decide(asked_for(THINK, params), SERVED).links[0].params.thinking_budget
        == 9
    )


def test_a_message_that_is_text_is_tokens_before_a_ceiling_holds_it():
    served = ServedModel(one_token_a_byte(), 400)
    ids = {"thinking_start_token_id": 300, "thinking_end_token_id": 301}
    rules = Rules(
        Policy(
            defaults=Chosen(processor=THINK, params={**ids, "thinking_budget": 5}),
            ceilings={"thinking_budget": Ceiling(at_most=10)},
        ),
        Verifier(Policy.default()).resolve,
    )
    rules.fit(served)

    def decide(closing):
        return rules.decide(
            asked_for(THINK, {**ids, "thinking_budget": 99, "closing": closing}), served
        )

    assert decide("abcd").links[0].params.thinking_budget == 6
    with pytest.raises(InvalidParameter, match=r"closing_token_ids.*at most 10 on"):
        decide("a" * 11)


def test_a_total_has_a_ceiling_of_its_own():
    rules = rules_of(ceilings={"total_thinking_tokens": Ceiling(at_most=10)}, defaults=DEFAULT)
    own = (
        rules.decide(asked_for(THINK, {**IDS, "total_thinking_tokens": 99}), SERVED).links[0].params
    )
    less, none = (
        rules.decide(asked_for(THINK, {**IDS, "total_thinking_tokens": total}), SERVED)
        .links[0]
        .params
        for total in (3, 0)
    )
    other = rules.decide(asked_for("DRYLogitProcessor"), SERVED)

    assert [one.total_thinking_tokens for one in (own, less, none)] == [10, 3, 0]
    assert [*links_of(other).values()][1].total_thinking_tokens == 10
    with pytest.raises(PolicyError, match=r"ceilings.total_thinking_tokens: expected a whole"):
        rules_of(ceilings={"total_thinking_tokens": Ceiling(at_most=1.5)})


def test_a_ceiling_of_no_tokens_leaves_no_newline_either():
    rules = rules_of(ceilings={"thinking_budget": Ceiling(at_most=0)}, defaults=DEFAULT)

    decided = (
        rules.decide(asked_for(THINK, {**IDS, "new_line_token_id": 9}), SERVED).links[0].params
    )

    assert (decided.thinking_budget, decided.total_thinking_tokens) == (0, 0)


@pytest.mark.parametrize(
    ("closing", "expected"),
    [({}, 10), ({"new_line_token_id": 9}, 9), ({"closing_token_ids": [9] * 4}, 6)],
)
def test_a_ceiling_on_totals_counts_the_closing(closing, expected):
    rules = rules_of(ceilings={"total_thinking_tokens": Ceiling(at_most=10)}, defaults=DEFAULT)

    decided = rules.decide(asked_for(THINK, {**IDS, **closing}), SERVED).links[0].params
    small = (
        rules.decide(asked_for(THINK, {**IDS, "closing_token_ids": [9] * 11}), SERVED)
        .links[0]
        .params
    )

    assert decided.total_thinking_tokens == expected
    assert small.total_thinking_tokens == 0  # each block is closed with the end only


def test_a_ceiling_on_totals_that_refuses_says_so():
    ceiling = Ceiling(at_most=10, above="refuse")
    rules = rules_of(ceilings={"total_thinking_tokens": ceiling}, defaults=DEFAULT)

    with pytest.raises(InvalidParameter, match=r"total_thinking_tokens.*at most 10 on this server"):
        rules.decide(asked_for(THINK, {**IDS, "total_thinking_tokens": 11}), SERVED)


def test_smaller_budgets_of_a_request_are_held_to_the_one_it_gets():
    params = {**IDS, "thinking_budget": 90, "soft_thinking_budget": 80, "min_thinking_tokens": 70}

    decided = rules_of(**CAPPED).decide(asked_for(THINK, params), SERVED).links[0].params
    assert (decided.thinking_budget, decided.soft_thinking_budget) == (10, 10)
    assert decided.min_thinking_tokens == 10
    none = {**CAPPED, "ceilings": {"thinking_budget": Ceiling(at_most=0)}}
    waits = {"wait_token_id": 3, "min_thinking_tokens": 4, "thinking_budget": 4}
    assert (
        rules_of(**none)
        .decide(asked_for(THINK, {**IDS, **waits}), SERVED)
        .links[0]
        .params.wait_token_id
        is None
    )


def test_a_ceiling_holds_for_requests_with_another_processor_or_none():
    rules = rules_of(**CAPPED)

    for asked in (asked_for("DRYLogitProcessor"), asked_for("DRYLogitProcessor", None, -1)):
        decided = rules.decide(asked, SERVED)
        assert named(decided) == ["DRYLogitProcessor", THINK]
        assert [*links_of(decided).values()][1].thinking_budget == 10


def test_a_ceiling_on_any_number_holds_in_chains_profiles_and_defaults():
    rules = rules_of(
        ceilings={"dry_multiplier": Ceiling(at_most=1), "max_waits": Ceiling(at_most=2)},
        profiles={
            "wild": Profile(
                processors=(Chosen(processor="DRYLogitProcessor", params={"dry_multiplier": 3.0}),),
            )
        },
        defaults=Chosen(processor="DRYLogitProcessor", params={"dry_multiplier": 2.0}),
    )
    chain = {"chain": ["DRYLogitProcessor"], "0.dry_multiplier": 9.5}

    for asked in (
        asked_for(None, {"dry_multiplier": 4.0}),
        asked_for("wild"),
        asked_for("DRYLogitProcessor", {"dry_multiplier": 1.5}),
        asked_for("ChainLogitProcessor", chain),
    ):
        assert [
            params.dry_multiplier for params in links_of(rules.decide(asked, SERVED)).values()
        ] == [1.0]
    low = rules.decide(asked_for("DRYLogitProcessor", {"dry_multiplier": 0.5}), SERVED)
    assert low.links[0].params.dry_multiplier == 0.5


def test_a_ceiling_that_refuses_names_the_parameter_and_the_most():
    rules = rules_of(ceilings={"dry_multiplier": Ceiling(at_most=1, above="refuse")})

    with pytest.raises(InvalidParameter, match=r"dry_multiplier.*at most 1 on this server, got 3"):
        rules.decide(asked_for("DRYLogitProcessor", {"dry_multiplier": 3.0}), SERVED)


@pytest.mark.parametrize(
    ("processor", "params", "name", "at_most"),
    [
        ("TopNSigmaLogitProcessor", {}, "top_n_sigma", 0),
        ("DRYLogitProcessor", {"dry_multiplier": 1.0}, "dry_allowed_length", 0.5),
        ("TemperatureLogitProcessor", {"temperature": 0.5}, "temperature", 0),
    ],
)
def test_a_number_that_cannot_be_as_low_as_its_ceiling_is_refused(processor, params, name, at_most):
    rules = rules_of(ceilings={name: Ceiling(at_most=at_most)})

    with pytest.raises(InvalidParameter, match=rf"{name}.*at most {at_most} on this server"):
        rules.decide(asked_for(processor, params), SERVED)


def test_a_profile_runs_what_the_operator_bundled_and_takes_what_it_lets_be_set():
    rules = rules_of(
        profiles={
            "support": Profile(processors=(DEFAULT, BAN), may_set=("thinking_budget", "token_ids"))
        }
    )

    assert named(rules.decide(asked_for("support"), SERVED)) == [
        THINK,
        "DisallowedTokensLogitsProcessor",
    ]
    think, ban = links_of(
        rules.decide(asked_for("support", {"thinking_budget": 3, "token_ids": [9]}), SERVED)
    ).values()
    assert (think.thinking_budget, ban.token_ids) == (3, (9,))
    with pytest.raises(
        InvalidParameter, match="lets a request set thinking_budget, token_ids, got"
    ):
        rules.decide(asked_for("support", {"soft_top_n": 3}), SERVED)


def test_a_profile_takes_the_fields_of_other_engines_that_it_lets_be_set():
    rules = rules_of(profiles={"calm": Profile(processors=(BAN,), may_set=("bad_words",))})
    field = ("bad_words", [2, 5, 6])

    decided = rules.decide(asked_for("calm", fields=(field,)), SERVED)
    assert decided.names == (BAN.processor, "BadWordsLogitProcessor")
    for refused in (
        asked_for("calm", fields=(field, ("top_n_sigma", 1.0))),
        asked_for("calm", {"bad_words": ["a"]}),  # no parameter of a processor
    ):
        with pytest.raises(InvalidParameter, match="lets a request set bad_words, got"):
            rules.decide(refused, SERVED)


def test_a_budget_field_beside_a_profile_that_takes_none_is_refused():
    rules = rules_of(profiles={"calm": Profile(processors=(DEFAULT,))})

    with pytest.raises(InvalidParameter, match="got 'thinking_budget', in a field of the request"):
        rules.decide(asked_for("calm", field=6), SERVED)
    # An effort is no number of the client's.
    assert (
        rules.decide(asked_for("calm", effort="low"), SERVED).links[0].params.thinking_budget == 5
    )


def test_a_profile_may_leave_a_required_parameter_to_the_request():
    chosen = Chosen(processor="MinLengthLogitProcessor", params={"eos_token_ids": [3]})
    rules = rules_of(profiles={"long": Profile(processors=(chosen,), may_set=("min_tokens",))})

    assert (
        rules.decide(asked_for("long", {"min_tokens": 4}), SERVED).links[0].params.min_tokens == 4
    )
    with pytest.raises(InvalidParameter, match=r"min_tokens.*required"):
        rules.decide(asked_for("long"), SERVED)


def test_a_profile_runs_although_no_class_is_allowed_by_itself():
    policy = Policy(builtins=False, stock="deny", profiles={"calm": Profile(processors=(DEFAULT,))})
    rules = Rules(policy, Verifier(policy).resolve)
    rules.fit(SERVED)

    assert named(rules.decide(asked_for("calm"), SERVED)) == [THINK]
    with pytest.raises(PayloadRefused):
        rules.decide(asked_for(None, {"thinking_budget": 3}), SERVED)


def test_what_every_request_gets_is_beside_its_own_and_not_named():
    rules = rules_of(always=(BAN,))
    own = asked_for("AllowedTokensLogitProcessor", {"token_ids": [3]})

    assert named(rules.decide(asked_for(None), SERVED)) == ["DisallowedTokensLogitsProcessor"]
    assert rules.decide(asked_for(None), SERVED).names == ()
    decided = rules.decide(own, SERVED)
    assert named(decided) == ["AllowedTokensLogitProcessor", "DisallowedTokensLogitsProcessor"]
    assert decided.names == ("AllowedTokensLogitProcessor",)
    assert [link.is_named for link in decided.links] == [True, False]


@pytest.mark.parametrize("may_resume", [False, True])
def test_what_every_request_gets_begins_with_the_request_unless_requests_may_resume(may_resume):
    always = Chosen(
        processor="MinLengthLogitProcessor", params={"min_tokens": 8, "eos_token_ids": [3]}
    )
    rules = rules_of(always=(always,), may_resume=may_resume)
    own = asked_for(BAN.processor, {"token_ids": [5]}, resumed=4)

    both, alone = rules.decide(own, SERVED), rules.decide(asked_for(None, resumed=4), SERVED)
    assert (both.resumed, alone.resumed) == (4, 4 if may_resume else 0)
    assert [link.skipped for link in both.links] == ([0, 0] if may_resume else [0, 4])
    assert rules_of().decide(own, SERVED).resumed == 4


def test_a_budget_begins_with_the_answer_where_the_parser_reads_the_answer_by_itself():
    served = ServedModel(
        one_token_a_byte("<think>", "</think>"),
        400,
        reasoning=ReasoningFormat("<think>", "</think>", can_begin_inside=True),
    )
    rules = Rules(
        Policy(ceilings={"thinking_budget": Ceiling(at_most=8)}), Verifier(Policy()).resolve
    )
    rules.fit(served)
    ban = ("DisallowedTokensLogitsProcessor", {"token_ids": [7]})

    for reasoning, skipped, resumed in ((True, [0, 4], 0), (False, [0, 0], 4)):
        asked = asked_for(*ban, reasoning=reasoning, resumed=4)
        beside = rules.decide(asked, served)
        assert ([link.skipped for link in beside.links], beside.resumed) == (skipped, 4)
        alone = rules.decide(asked._replace(runs=None, custom_params=None), served)
        assert alone.resumed == resumed


def test_a_rule_of_one_phase_begins_where_the_parser_does_whoever_decided_on_it():
    served = ServedModel(
        one_token_a_byte("<think>", "</think>"),
        400,
        reasoning=ReasoningFormat("<think>", "</think>", can_begin_inside=True),
    )
    always = Chosen(processor=BAN.processor, params={**BAN.params, "where": "answer"})
    rules = Rules(Policy(always=(always,)), Verifier(Policy.default()).resolve)
    rules.fit(served)
    own = asked_for("MinLengthLogitProcessor", {"min_tokens": 3, "eos_token_ids": [3]}, resumed=4)
    phased = own._replace(custom_params={**own.custom_params, "where": "thinking"})

    def phases(asked):
        decided = rules.decide(asked, served)
        found = [link.phase for link in decided.links]
        return [one and (one.is_thinking, one.begins_inside) for one in found], decided.resumed

    assert phases(own._replace(reasoning=True)) == ([None, (False, True)], 4)
    assert phases(phased._replace(reasoning=True)) == ([(True, True), (False, True)], 0)
    assert phases(phased) == ([(True, False), (False, False)], 4)
    with pytest.raises(PolicyError, match=r"always\[0\].*where"):
        rules_of(always=(always,))


@pytest.mark.parametrize("by", ["request", "chain", "defaults", "profile", "always"])
def test_a_rule_of_the_content_holds_in_the_answer_that_sglang_splits_whoever_decided(by):
    served = ServedModel(
        one_token_a_byte("<think>", "</think>"),
        400,
        eos_token_ids=(3,),
        reasoning=ReasoningFormat("<think>", "</think>", can_begin_inside=True),
    )
    name, own = "ChoiceLogitProcessor", {"choices": ["yes", "no"]}

    def phase(where, *, reasoning):
        given = own if where is None else {**own, "where": where}
        chosen = Chosen(processor=name, params=given)
        policy = {
            "defaults": {"defaults": chosen},
            "profile": {"profiles": {"p": Profile(processors=(chosen,))}},
            "always": {"always": (chosen,)},
        }.get(by, {})
        asked = {
            "request": (name, given),
            "chain": (
                "ChainLogitProcessor",
                {"chain": [name], **{f"0.{key}": value for key, value in given.items()}},
            ),
            "profile": ("p", None),
        }.get(by, (None, None))
        rules = Rules(Policy(**policy), Verifier(Policy.default()).resolve)
        rules.fit(served)
        decided = rules.decide(asked_for(*asked, reasoning=reasoning), served)
        (link,) = decided.links
        return link.phase and (link.phase.is_thinking, link.phase.begins_inside)

    assert phase("answer", reasoning=True) == (False, True)
    # A mandatory rule steps back nowhere unless its operator says so.
    assert phase(None, reasoning=True) == (None if by == "always" else (False, True))
    assert phase(None, reasoning=False) is None
    assert phase("everywhere", reasoning=True) is phase("everywhere", reasoning=False) is None


def test_a_ban_that_names_no_phase_holds_in_the_thoughts_of_an_answer_that_sglang_splits():
    form = ReasoningFormat("<think>", "</think>", can_begin_inside=True)
    served = ServedModel(one_token_a_byte("<think>", "</think>"), 400, reasoning=form)
    for where in ({}, {"where": None}, {"where": "everywhere"}):
        ban = asked_for(BAN.processor, {**BAN.params, **where}, reasoning=True)
        ((_, _, phase, *_),) = rules_of().decide(ban, served).links
        assert phase is None


def test_a_mandatory_rule_of_one_phase_reads_the_delimiters_of_each_effort():
    form = ReasoningFormat("<high>", "</high>", others=(ReasoningFormat("<low>", "</low>"),))
    tokenizer = one_token_a_byte("<high>", "</high>", "<low>", "</low>")
    served = ServedModel(tokenizer, 400, reasoning=form)
    always = Chosen(processor=BAN.processor, params={**BAN.params, "where": "answer"})
    rules = Rules(Policy(always=(always,)), Verifier(Policy.default()).resolve)
    rules.fit(served)

    for one in served.by_effort():
        (link,) = rules.decide(asked_for(None), one).links
        assert link.phase.finder.end == (tokenizer.token_to_id(one.reasoning.end),)


def test_a_full_chain_of_a_request_has_room_for_what_every_request_gets():
    chain = {"chain": ["AllowedTokensLogitProcessor"] * 8}
    chain |= {f"{place}.token_ids": [3] for place in range(8)}

    decided = rules_of(always=(BAN,)).decide(asked_for("ChainLogitProcessor", chain), SERVED)
    assert len(decided.links) == 9


@pytest.mark.parametrize("kind", [Dense, Foreign])
def test_what_computes_on_whole_rows_runs_with_what_every_request_gets(kind):
    decided = rules_of(always=(BAN,)).decide(asked_for(kind, {}), SERVED)
    assert named(decided) == [kind.__name__, "DisallowedTokensLogitsProcessor"]
    assert decided.names == (kind.__name__,)
    alone = rules_of().decide(asked_for(kind, {}), SERVED)
    assert alone.links[0].processor is as_processor(kind)


def test_a_ceiling_lowers_what_a_class_without_a_schema_reads():
    rules = Rules(
        Policy(ceilings={"max_waits": Ceiling(at_most=2)}), Verifier(Policy()).resolve, [Foreign]
    )

    assert rules.decide(asked_for(Foreign, {"max_waits": 5, "a": [1]}), SERVED).links[
        0
    ].params.values == {
        "max_waits": 2,
        "a": [1],
    }


@pytest.mark.parametrize(
    ("decisions", "why"),
    [
        ({"always": (DEFAULT,)}, r"always\[0\]: a thinking budget belongs in \[defaults\]"),
        (
            {
                "always": (
                    Chosen(processor="CatalogueLogitProcessor", params={"catalogue": "items"}),
                )
            },
            r"always\[0\]: a catalogue belongs in \[defaults\]",
        ),
        (
            {"always": (Chosen(processor="ChainLogitProcessor", params={"chain": []}),)},
            "cannot run together with",
        ),
        ({"defaults": Chosen(processor="NoSuch")}, r"defaults.processor: expected .*:Class"),
        ({"defaults": Chosen(processor="no.such:Class")}, "defaults: .* importing no.such failed"),
        (
            {"profiles": {"DRYLogitProcessor": Profile(processors=(BAN,))}},
            "a built-in has this name",
        ),
        (
            {"profiles": {"a": Profile(processors=(BAN,), may_set=("tokens",))}},
            r"profiles.a.may_set: .* 'tokens', which none of them has",
        ),
        (
            {"profiles": {"a": Profile(processors=(BAN, BAN), may_set=("token_ids",))}},
            "DisallowedTokensLogitsProcessor and DisallowedTokensLogitsProcessor has",
        ),
        (
            {"profiles": {"a": Profile(processors=(DEFAULT, DEFAULT))}},
            "at most one thinking budget",
        ),
        (
            {"profiles": {"a": Profile(processors=(Chosen(processor=THINK, params={"x": 1}),))}},
            r"profiles.a.processors\[0\].params: .* has no parameter 'x'",
        ),
        (
            {
                "profiles": {
                    "a": Profile(
                        processors=(
                            Chosen(processor="DRYLogitProcessor", params={"dry_base": "x"}),
                        )
                    )
                }
            },
            "profiles.a: .*dry_base",
        ),
        ({"ceilings": {"thinking_bugdet": Ceiling(at_most=1)}}, "ceilings.thinking_bugdet: no"),
        ({"ceilings": {"words": Ceiling(at_most=1)}}, "ceilings.words: no .* that is a number"),
        ({"ceilings": {"thinking_budget": Ceiling(at_most=1.5)}}, "expected a whole number"),
        ({"effort": {"low": 3}}, "thinking budgets: .*thinking_start_token_id"),
        (
            {"defaults": Chosen(processor=THINK, params={**IDS, "thinking_budget": "x"})},
            "^defaults: thinking_budget of .*: expected a whole number",
        ),
        (
            {
                "defaults": Chosen(processor=THINK, params={**IDS, "closing_token_ids": [5] * 3}),
                "ceilings": {"thinking_budget": Ceiling(at_most=2)},
            },
            "closing_token_ids.*at most 2",
        ),
    ],
)
def test_what_cannot_work_is_an_error_at_the_start(decisions, why):
    with pytest.raises(PolicyError, match=why):
        rules_of(**decisions)


def test_copies_of_a_request_share_what_their_lists_became():
    rules = rules_of()
    name = "DisallowedTokensLogitsProcessor"

    one, other = (
        rules.decide(asked_for(name, {"token_ids": [*range(5), *[7] * 90]}), SERVED)
        for _ in range(2)
    )
    assert one.links[0].params is other.links[0].params
