"""Fields of other engines mean here what they mean there, or are refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt")

from sglang_lp.errors import InvalidParameter, PayloadRefused, PolicyError, RequestError
from sglang_lp.policy import Rules
from sglang_lp.policy.fields import ENGINE_FIELDS
from sglang_lp.policy.sections import Ceiling, Chosen, Profile
from sglang_lp.served_model import ReasoningFormat, ServedModel, ToolCallFormat
from sglang_lp.server.front.engine_fields import spell
from sglang_lp.server.front.fields import Reader
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.server.gate.reserved_keys import FIELD_KEYS, check_origin, check_shape
from sglang_lp.trust import Policy, Verifier
from support.asked import asked_for
from support.models.vocabularies import byte_level, one_token_a_byte

SERVED = ServedModel.of(one_token_a_byte(), 256, [0])._replace(
    tool_calls=ToolCallFormat(("<call>",), "</call>")
)
BYTES = one_token_a_byte()
WORD = BYTES.encode("foo").ids
ALL = {
    "bad_words": ["foo"],
    "allowed_token_ids": [5, 6],
    "no_repeat_ngram_size": 3,
    "repetition_detection": {"max_pattern_size": 4, "min_count": 2},
    "min_tokens": 7,
    "top_n_sigma": 1.5,
}
#: SGLang has the others as well.
OTHERS = [name for name, field in ENGINE_FIELDS.items() if not field.is_sglangs]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def found(body, guard=None, form=SERVED.tool_calls, **own):
    """Return the fields that a chat with this body hands to the gates."""
    request = SimpleNamespace(custom_params=None, custom_logit_processor=None, **own)
    manager = SimpleNamespace(
        server_args=SimpleNamespace(enable_custom_logit_processor=True), tokenizer=BYTES
    )
    serving = SimpleNamespace(tokenizer_manager=manager)
    guard = guard or Guard(Policy.default())
    guard.server.tool_calls = form
    Reader(guard).read_chat(serving, request, SimpleNamespace(_json=body))
    given = request.custom_params or {}
    check_origin(given)
    check_shape({**given}, None)
    return {name: given[key] for name, key in FIELD_KEYS.items() if key in given}


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ({"bad_words": []}, None),
        ({"bad_words": None}, None),
        ({"bad_words": ["foo", "foo"]}, [3, *WORD]),
        ({"bad_words": [" foo"]}, [3, *WORD]),  # vLLM strips it
        ({"allowed_token_ids": None}, None),
        ({"allowed_token_ids": [3, 1]}, [3, 1]),
        ({"no_repeat_ngram_size": 0}, None),
        ({"no_repeat_ngram_size": 2}, 2),
        ({"repetition_detection": None}, None),
        ({"repetition_detection": {}}, None),
        ({"repetition_detection": {"max_pattern_size": 0, "min_count": 9}}, None),
        (
            {"repetition_detection": {"max_pattern_size": 4, "min_count": 2}},
            {"max_pattern_size": 4, "min_pattern_size": 1, "min_count": 2},
        ),
        ({"min_tokens": 0}, None),
        ({"min_tokens": 5}, 5),
        ({"top_n_sigma": None}, None),
        ({"top_n_sigma": 0}, None),
        ({"top_n_sigma": -1}, None),  # llama.cpp's default
        ({"top_n_sigma": 2}, 2),
        ({"top_n_sigma": 0.5}, 0.5),
    ],
)
def test_a_value_means_what_the_other_engine_means_by_it(body, value):
    assert found(body) == ({} if value is None else {next(iter(body)): value})


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("bad_words", "foo", "expected a list of texts, such as [\"word\"], got 'foo'"),
        ("bad_words", [1], "expected a list of texts"),
        ("bad_words", [""], "expected words, got ''"),
        ("bad_words", ["  "], "which bans nothing"),
        ("bad_words", ["x" * 257], "at most 256 characters, got one of 257"),
        ("bad_words", ["x"] * 1025, "at most 1024 words, got 1025"),
        ("allowed_token_ids", [], "expected a token id or more, got none"),
        ("allowed_token_ids", [True], "expected a list of token ids"),
        ("allowed_token_ids", 5, "expected a list of token ids"),
        ("no_repeat_ngram_size", -1, "0 or more, such as 8, got -1"),
        ("no_repeat_ngram_size", "3", "expected a whole number of tokens"),
        ("no_repeat_ngram_size", 2**31, "expected a whole number of tokens"),
        ("repetition_detection", [4], "expected an object, such as"),
        ("repetition_detection", {"max_patern_size": 4}, "did you mean 'max_pattern_size'"),
        ("repetition_detection", {"max_pattern_size": -1}, "max_pattern_size: expected a whole"),
        ("repetition_detection", {"max_pattern_size": 4}, "min_count: expected 2 or more, got 0"),
        ("repetition_detection", {"min_pattern_size": 2}, "of at most max_pattern_size, got 2"),
        ("min_tokens", -1, "expected a whole number of tokens"),
        ("top_n_sigma", "1", "expected a number of standard deviations, such as 1.5, got '1'"),
        ("top_n_sigma", True, "expected a number"),
        ("top_n_sigma", float("inf"), "expected a number"),
        ("top_n_sigma", float("nan"), "expected a number"),
    ],
)
def test_a_value_that_means_nothing_is_refused(field, value, why):
    with pytest.raises(RequestError) as refused:
        found({field: value})

    assert str(refused.value).startswith(field)
    assert why in str(refused.value)


def test_sglangs_own_minimum_is_left_to_sglang():
    assert found({"min_tokens": 5}, min_tokens=5) == {}
    assert found({"min_tokens": "5"}, min_tokens=5) == {}
    assert found({"min_tokens": 5}, min_tokens=0) == {"min_tokens": 5}


def test_words_are_spelled_as_vllm_bans_them():
    # " cat" is a token of its own, as "cat" is; " catx" has as many tokens as "catx".
    tokenizer = byte_level(["cat cat", " cat cat"] * 50, 270)
    one, two = tokenizer.encode("cat").ids, tokenizer.encode(" cat").ids
    served = SimpleNamespace(encode=lambda text, **_: tokenizer.encode(text).ids)

    expected = [len(one), *one]
    if len(two) == len(one) and one[0] != two[0]:
        expected += [len(two), *two]
    assert spell(["cat"], served) == expected
    with pytest.raises(RequestError, match="this server has no tokenizer"):
        spell(["cat"], None)
    with pytest.raises(RequestError, match="tokens for, got 'cat'"):
        spell(["cat"], SimpleNamespace(encode=lambda *_, **__: []))


def rules_of(find=None, **decisions):
    rules = Rules(Policy(**decisions), find or Verifier(Policy.default()).resolve)
    rules.fit(SERVED)
    return rules


def asked(payload=None, params=None, **fields):
    return asked_for(payload, params, fields=tuple(found(fields).items()))


def links_of(decided):
    return {link.processor.__name__: link.params for link in decided.links}


def test_each_field_runs_its_built_in():
    links = links_of(rules_of().decide(asked(**ALL), SERVED))

    assert (*links["BadWordsLogitProcessor"].token_ids,) == (*WORD,)
    assert links["BadWordsLogitProcessor"].lengths == (3,)
    assert (*links["AllowedTokensLogitProcessor"].token_ids,) == (5, 6)
    assert links["DeepseekOCRNoRepeatNGramLogitProcessor"].ngram_size == 3
    loops = links["LoopBreakerLogitProcessor"]
    assert (loops.max_pattern_size, loops.min_count, loops.action) == (4, 2, "end")
    assert links["MinLengthLogitProcessor"].min_tokens == 7
    assert links["TopNSigmaLogitProcessor"].top_n_sigma == 1.5
    assert len(links) == len(OTHERS)


def test_a_field_joins_what_the_request_names_and_what_the_operator_decided():
    ban = Chosen(processor="DisallowedTokensLogitsProcessor", params={"token_ids": [7]})
    default = Chosen(processor="DRYLogitProcessor")
    rules = rules_of(always=(ban,), defaults=default)

    alone = rules.decide(asked(min_tokens=3), SERVED)
    assert [*links_of(alone)] == [
        "DRYLogitProcessor",
        "MinLengthLogitProcessor",
        "DisallowedTokensLogitsProcessor",
    ]
    assert alone.names == ("DRYLogitProcessor", "MinLengthLogitProcessor")
    named = rules.decide(asked("LoopBreakerLogitProcessor", {}, min_tokens=3), SERVED)
    assert named.names == ("LoopBreakerLogitProcessor", "MinLengthLogitProcessor")
    chain = {"chain": ["LoopBreakerLogitProcessor"] * 8}
    with pytest.raises(RequestError, match="min_tokens: expected at most 8 processors"):
        rules.decide(asked("ChainLogitProcessor", chain, min_tokens=3), SERVED)
    repeat = (
        "DeepseekOCRNoRepeatNGramLogitProcessor",
        {"ngram_size": 3, "window_size": 9},
    )
    with pytest.raises(InvalidParameter, match="at most one"):
        rules.decide(asked(*repeat, no_repeat_ngram_size=3), SERVED)


@pytest.mark.parametrize("field", OTHERS)
def test_ceilings_allow_lists_and_profiles_hold_for_fields(field):
    ask = asked(**{field: ALL[field]})
    with pytest.raises(PayloadRefused, match=f"{field}: expected none, as this server does not"):
        rules_of(Verifier(Policy(builtins=False)).resolve).decide(ask, SERVED)
    fixed = Profile(processors=(Chosen(processor="DRYLogitProcessor"),))
    with pytest.raises(InvalidParameter, match=f"got '{field}', in a field of the request"):
        rules_of(profiles={"fixed": fixed}).decide(ask._replace(runs="fixed"), SERVED)
    if field != "min_tokens":
        return
    capped = rules_of(ceilings={"min_tokens": Ceiling(at_most=2)}).decide(ask, SERVED)
    assert capped.links[0].params.min_tokens == 2


def test_more_sigmas_than_the_built_in_takes_are_refused_in_the_fields_name():
    with pytest.raises(RequestError, match=r"^top_n_sigma: expected .*100"):
        rules_of().decide(asked(top_n_sigma=101), SERVED)


def test_a_token_that_the_model_does_not_have_is_refused_in_the_fields_name():
    with pytest.raises(RequestError, match=r"^allowed_token_ids: expected token ids of the served"):
        rules_of().decide(asked(allowed_token_ids=[256]), SERVED)


@pytest.mark.parametrize(
    ("body", "wanted", "why"),
    [
        (
            {"parallel_tool_calls": False, "tools": TOOLS},
            {"masked": True},
            "return_sampling_mask: .* got parallel_tool_calls, which also",
        ),
        (
            {"repetition_detection": ALL["repetition_detection"], "min_tokens": 2},
            {"beam_width": 2},
            "beam_width: expected 1 with repetition_detection, got 2",
        ),
    ],
)
def test_a_server_that_cannot_honour_a_field_refuses_it_in_the_fields_name(body, wanted, why):
    guard = Guard(Policy.default())
    given = {FIELD_KEYS[name]: value for name, value in found(body, guard).items()}
    guard.server.tokenizer, guard.server.vocab_size = SERVED.tokenizer, SERVED.vocab_size
    guard.server.eos_token_ids = SERVED.eos_token_ids
    for payload, params in ((None, {}), ("DisallowedTokensLogitsProcessor", {"token_ids": [5]})):
        with pytest.raises(RequestError, match=f"^{why}"):
            guard.admit(Intake(payload, {**params, **given}, **wanted))


def test_a_class_that_the_client_names_is_refused_by_its_own_name_next_to_a_field():
    guard = Guard(Policy.default())
    given = found({"min_tokens": 2}, guard)
    guard.server.vocab_size, guard.server.eos_token_ids = SERVED.vocab_size, (0,)
    asked = {"action": "end", **{FIELD_KEYS[name]: value for name, value in given.items()}}
    with pytest.raises(RequestError, match=r"^beam_width: expected 1 with LoopBreakerLogitProc"):
        guard.admit(Intake("LoopBreakerLogitProcessor", asked, beam_width=2))


@pytest.mark.parametrize("field", OTHERS)
def test_the_operator_switches_a_field_off_by_name(field):
    off = Guard(Policy(fields={field: False}))

    assert off.rules.is_empty
    assert found(ALL, off).keys() == ALL.keys() - {field}
    with pytest.raises(PolicyError, match="did you mean 'bad_words'"):
        Policy(fields={"bad_word": False})


def test_fields_of_other_engines_alone_are_never_left_to_sglang_which_would_ignore_them():
    assert found(ALL, Guard(Policy(builtins=False))).keys() == {*OTHERS} & ALL.keys()


# Tool calls

NONE = {"tool_choice": "none", "tools": TOOLS}
ONE = {"parallel_tool_calls": False, "tools": TOOLS}


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (NONE, {"tool_choice"}),
        ({"tool_choice": "none"}, set()),  # SGLang's default without tools
        ({"tool_choice": "none", "messages": [{"tools": TOOLS}]}, {"tool_choice"}),
        ({"tool_choice": {"type": "none"}, "tools": TOOLS}, {"tool_choice"}),  # Anthropic's
        ({"tool_choice": "auto", "tools": TOOLS}, set()),
        ({"tools": TOOLS}, set()),
        ({}, set()),
        (ONE, {"parallel_tool_calls"}),
        ({**ONE, "tool_choice": "required"}, {"parallel_tool_calls"}),
        ({**ONE, **NONE}, {"tool_choice"}),
        ({"parallel_tool_calls": False}, set()),
        ({"parallel_tool_calls": False, "tools": []}, set()),
        ({"parallel_tool_calls": True, "tools": TOOLS}, set()),
        ({"parallel_tool_calls": None, "tools": TOOLS}, set()),
        (
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "tools": TOOLS},
            {"parallel_tool_calls"},
        ),
    ],
)
def test_fields_for_tool_calls_are_read_where_they_limit_calls(body, names):
    assert found(body).keys() == names


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({}, 0),
        ({"response_format": {"type": "text"}}, 0),
        ({"response_format": {"type": "json_object"}}, 1),
        ({"text": {"format": {"type": "json_schema"}}}, 1),
        ({"regex": "a+"}, 1),
        ({"ebnf": 'root ::= "a"'}, 1),
    ],
)
def test_a_structured_answer_has_no_call_in_its_thoughts_only(more, value):
    guard = Guard(Policy.default())
    guard.server.reasoning = SimpleNamespace(can_begin_inside=False)
    assert found({**NONE, **more}, guard) == {"tool_choice": value}
    form = SERVED.tool_calls._replace(where="answer")
    assert found({**NONE, **more}, guard, form) == ({} if value else {"tool_choice": 0})


def test_what_cannot_be_told_or_is_not_allowed_is_left_to_sglang():
    endless = ToolCallFormat(("<call>",))
    assert found(NONE, form=None) == found(ONE, form=None) == found(ONE, form=endless) == {}
    assert found(NONE, form=endless).keys() == {"tool_choice"}
    for policy in (
        Policy(builtins=False),
        Policy(fields={"tool_choice": False, "parallel_tool_calls": False}),
    ):
        assert found(NONE, Guard(policy)) == found(ONE, Guard(policy)) == {}


@pytest.mark.parametrize("where", ["everywhere", "answer"])
def test_tool_choice_none_bans_the_starts_and_one_call_ends_the_answer(where):
    form = SERVED.tool_calls._replace(where=where)
    thinks = ReasoningFormat("<think>", "</think>")
    served = SERVED._replace(tool_calls=form, reasoning=thinks)

    none = rules_of().decide(asked(**NONE), served)
    assert none.names == ("BadWordsLogitProcessor",)
    (ban,) = none.links
    assert (ban.params.words, ban.params.where) == (form.starts, where)
    one = rules_of().decide(asked("MinLengthLogitProcessor", {"min_tokens": 2}, **ONE), served)
    assert one.names == ("MinLengthLogitProcessor", "ToolCallLimitLogitProcessor")
    limit = links_of(one)["ToolCallLimitLogitProcessor"]
    assert (limit.max_tool_calls, limit.where) == (1, where)
    assert (limit.tool_call_starts, limit.tool_call_end) == (form.starts, form.end)


def test_a_profile_and_a_full_chain_take_the_fields_for_tool_calls():
    fixed = Profile(processors=(Chosen(processor="DRYLogitProcessor"),))
    for fields in (NONE, ONE):
        decided = rules_of(profiles={"fixed": fixed}).decide(asked("fixed", **fields), SERVED)
        assert len(decided.names) == 2
        chain = {"chain": ["LoopBreakerLogitProcessor"] * 8}
        decided = rules_of().decide(asked("ChainLogitProcessor", chain, **fields), SERVED)
        assert len(decided.names) == 9
