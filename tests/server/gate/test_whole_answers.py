"""Refusals of structured answers that have to be complete, and the bans that are counted in."""

import dataclasses
from types import SimpleNamespace

import pytest

from sglang_lp import builtins
from sglang_lp.errors import PolicyError, RequestError, Unsupported
from sglang_lp.links import Serving, parse_links
from sglang_lp.params import take_beside
from sglang_lp.policy.sections import Structured
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.server.gate.whole_answers import check_policy, find_ending, is_whole
from sglang_lp.trust import Policy

ASKED = Intake(custom_params={"whole_answer": True}, grammar="regex", limit=40)
#: Processors that leave every way to an end open, or whose bans are counted in or looked at later.
SERVED = {
    "AllowedTokensLogitProcessor",
    "BiasWordsLogitProcessor",
    "DRYLogitProcessor",
    "DisallowedTokensLogitsProcessor",
    "GenLengthLogitProcessor",
    "ScheduledBiasLogitProcessor",
    "TemperatureLogitProcessor",
    "ToolCallLimitLogitProcessor",
    "TopNSigmaLogitProcessor",
}


@pytest.fixture
def guard():
    made = Guard(Policy.default())
    made.server.grammar_backend = "xgrammar"
    made.server.vocab_size = 8
    return made


@pytest.fixture
def deciding():
    made = Guard(Policy(structured=Structured(whole_answers=True)))
    made.server.grammar_backend = "xgrammar"
    return made


def admitted(name, **params):
    kind = getattr(builtins, name)
    links = parse_links(kind, params)
    return SimpleNamespace(servings=[Serving(link.processor(), link.params) for link in links])


def test_a_request_and_the_operator_turn_it_on(guard, deciding):
    plain = dataclasses.replace(ASKED, custom_params=None)
    refusing = dataclasses.replace(ASKED, custom_params={"whole_answer": False})
    assert find_ending(guard, ASKED, None).banned == frozenset()
    assert find_ending(guard, plain, None) is None
    assert find_ending(deciding, plain, None).banned == frozenset()
    assert find_ending(deciding, refusing, None) is None
    assert not is_whole(deciding, dataclasses.replace(plain, grammar=None))


@pytest.mark.parametrize(
    "change", [{"stopped_by": "stop"}, {"stop_token_ids": frozenset({5})}, {"beam_width": 2}]
)
def test_a_request_that_asks_for_nothing_is_served_without(deciding, change):
    asked = dataclasses.replace(ASKED, **change)
    with pytest.raises(Unsupported):
        find_ending(deciding, asked, None)
    ending = find_ending(deciding, dataclasses.replace(asked, custom_params=None), None)
    assert not ending.is_asked
    assert ending.hindrance.startswith("expected n")
    words = admitted("BadWordsLogitProcessor", words=["a"])
    plain = dataclasses.replace(ASKED, custom_params=None)
    assert "whose bans depend on the text" in find_ending(deciding, plain, words).hindrance


@pytest.mark.parametrize("where", ["answer", "everywhere"])
@pytest.mark.parametrize("thinks", [False, True])
def test_a_limit_on_calls_is_led_if_it_counts_the_text_of_the_grammar_only(guard, where, thinks):
    limit = builtins.ToolCallLimitLogitProcessor
    (link,) = parse_links(limit, {"max_tool_calls": 1})
    phase = SimpleNamespace(is_thinking=False) if where == "answer" else None
    made = SimpleNamespace(servings=[Serving(link.processor(), link.params, phase)])
    asked = dataclasses.replace(ASKED, reasoning=thinks)
    if thinks and where == "everywhere":
        with pytest.raises(Unsupported, match="ToolCallLimitLogitProcessor"):
            find_ending(guard, asked, made)
    else:
        assert find_ending(guard, asked, made).limits == (link.params,)


def test_the_word_is_no_parameter_of_a_processor():
    rest, beside = take_beside({"whole_answer": True, "words": ["a"]})
    assert rest == {"words": ["a"]}
    assert beside.whole is True
    with pytest.raises(RequestError, match="whole_answer: expected true or false, got 1"):
        take_beside({"whole_answer": 1})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grammar": None}, "json_schema, regex, ebnf or structural_tag"),
        ({"stopped_by": "stop"}, "none with stop,"),
        ({"stop_token_ids": frozenset({5})}, "none with stop_token_ids"),
        ({"beam_width": 2}, "beam_width"),
    ],
)
def test_what_could_end_an_answer_early_is_refused(guard, change, words):
    with pytest.raises(RequestError, match=words):
        find_ending(guard, dataclasses.replace(ASKED, **change), None)


def test_bans_are_counted_in_by_what_they_ban(guard):
    ban = admitted("DisallowedTokensLogitsProcessor", token_ids=[3, 4])
    assert find_ending(guard, ASKED, ban).banned == {3, 4}
    only = admitted("AllowedTokensLogitProcessor", token_ids=[3, 4])
    assert find_ending(guard, ASKED, only).banned == {0, 1, 2, 5, 6, 7}
    bans = admitted("ScheduledBiasLogitProcessor", token_ids=[3], start=0, end=9)
    assert find_ending(guard, ASKED, bans).banned == {3}
    biases = admitted("ScheduledBiasLogitProcessor", token_ids=[3], start=0, end=9, bias=1.0)
    assert find_ending(guard, ASKED, biases).banned == frozenset()


@pytest.mark.parametrize("name", sorted(builtins.__all__))
def test_every_processor_is_served_or_refused_by_name(guard, name):
    kind = getattr(builtins, name)
    thinks = "ThinkingBudget" in name
    given = {**kind.example, "thinking_start_token_id": 1, "thinking_end_token_id": 2}
    params = given if name == "ThinkingBudgetLogitProcessor" else kind.example
    if name == "ThinkingBudgetLogitProcessor":
        params = {k: v for k, v in given.items() if k not in {"thinking_start", "thinking_end"}}
    if name == "ChainLogitProcessor":
        params = {"chain": ["BadWordsLogitProcessor"], "0.words": ["a"]}
    made = admitted(name, **params)
    if name in SERVED or thinks:
        assert find_ending(guard, ASKED, made) is not None
    else:
        with pytest.raises(Unsupported, match="whose bans depend on the text"):
            find_ending(guard, ASKED, made)


def test_a_budget_that_ends_the_answer_in_its_block_is_refused(guard):
    stops = admitted("Qwen3ThinkingBudgetLogitProcessor", thinking_budget=5, at_limit="stop")
    with pytest.raises(Unsupported):
        find_ending(guard, ASKED, stops)


@pytest.mark.parametrize("backend", ["llguidance", "outlines", "none"])
def test_a_server_with_other_grammars_is_refused_by_name(guard, deciding, backend):
    guard.server.grammar_backend = deciding.server.grammar_backend = backend
    with pytest.raises(Unsupported, match=backend):
        find_ending(guard, ASKED, None)
    with pytest.raises(PolicyError, match=f"structured.whole_answers: .*{backend}"):
        check_policy(deciding)
    check_policy(guard)


def test_another_serialized_form_of_xgrammar_is_refused(guard, deciding, monkeypatch):
    monkeypatch.setattr("sglang_lp.closing.automaton.VERSIONS", ("v1",))
    with pytest.raises(Unsupported, match="serialized form v1, got v16"):
        find_ending(guard, ASKED, None)
    with pytest.raises(PolicyError, match="v1, got v16"):
        check_policy(deciding)
