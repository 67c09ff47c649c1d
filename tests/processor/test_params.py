"""Valid values of custom_params, and messages of refusals."""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import LoopBreakerLogitProcessor, ScriptLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.params import (
    MAX_TOKEN_IDS,
    NonNegativeInt,
    Parameters,
    PositiveInt,
    TokenId,
    TokenIds,
    TokenIdSet,
    check_vocabulary,
    is_private,
    parse,
)


class Example(Parameters, frozen=True):
    token_id: TokenId
    token_ids: TokenIds = ()
    whitelist: TokenIdSet | None = None
    size: PositiveInt = 1
    count: NonNegativeInt = 0
    weight: float = 0.0
    weights: tuple[float, ...] = ()
    bias: dict[str, float] = msgspec.field(default_factory=dict)
    name: str | None = None

    def __post_init__(self):
        if self.count > 100:
            raise ValueError(f"count: expected at most 100, got {self.count}")
        if self.size > 100:
            raise ValueError("these sizes do not go together")


def refusal(custom_params):
    with pytest.raises(InvalidParameter) as refused:
        parse(Example, "Mine", custom_params)
    return refused.value


def test_what_fits_is_typed():
    given_params = {"token_id": 5, "token_ids": [1, 2, 2], "whitelist": [3, 3], "weight": 1}

    params = parse(Example, "Mine", given_params)

    assert params == Example(token_id=5, token_ids=(1, 2, 2), whitelist=frozenset({3}), weight=1.0)


def test_parsed_parameters_cannot_change():
    params = parse(Example, "Mine", {"token_id": 5})

    with pytest.raises(AttributeError):
        params.token_id = 6


def test_what_sglang_keeps_there_is_no_parameter():
    params = {
        "token_id": 5,
        "__req__": object(),
        "__sglang_reasoning_end_token_ids": [1],
        "__sglang_reasoning_in_grammar": True,
        object(): 1,
    }

    assert parse(Example, "Mine", params) == Example(token_id=5)


@pytest.mark.parametrize("key", ["req", "__req", "__other__", "token_id", "sglang_reasoning_x"])
def test_everything_else_is_a_parameter(key):
    assert not is_private(key)


@pytest.mark.parametrize(
    ("custom_params", "parameter", "words"),
    [
        ({}, "token_id", "required, but not given"),
        (None, "token_id", "required"),
        ({"token_id": None}, "token_id", "expected a whole number, such as 8, got null"),
        ({"token_id": "5"}, "token_id", "expected a whole number, such as 8, got '5'"),
        ({"token_id": 5.0}, "token_id", "expected a whole number, such as 8, got 5.0"),
        ({"token_id": True}, "token_id", "expected a whole number, such as 8, got true"),
        ({"token_id": -1}, "token_id", "expected a whole number of 0 or more, got -1"),
        (
            {"token_id": 2**31},
            "token_id",
            "expected a whole number of at most 2147483647, got 2147483648",
        ),
        ({"token_id": 10**50}, "token_id", "got a huge int"),
        ({"token_id": [5]}, "token_id", "expected a whole number, such as 8, got list of 1"),
        (
            {"token_id": 1, "token_ids": 5},
            "token_ids",
            "expected a list of token ids, such as [15, 16], got 5",
        ),
        (
            {"token_id": 1, "token_ids": "12"},
            "token_ids",
            "expected a list of token ids, such as [15, 16], got '12'",
        ),
        ({"token_id": 1, "token_ids": [1, -2]}, "token_ids", "got -2 at [1]"),
        ({"token_id": 1, "token_ids": [1, None]}, "token_ids", "got null at [1]"),
        ({"token_id": 1, "token_ids": [[1]]}, "token_ids", "got list of 1 at [0]"),
        ({"token_id": 1, "token_ids": {"a": 1}}, "token_ids", "got dict of 1"),
        (
            {"token_id": 1, "token_ids": [1] * (MAX_TOKEN_IDS + 1)},
            "token_ids",
            "a list of at most 65536 entries, got list of 65537",
        ),
        (
            {"token_id": 1, "whitelist": ["a"]},
            "whitelist",
            "expected a whole number, such as 8, got 'a' at [0]",
        ),
        ({"token_id": 1, "size": 0}, "size", "expected a whole number of 1 or more, got 0"),
        ({"token_id": 1, "count": -1}, "count", "expected a whole number of 0 or more, got -1"),
        ({"token_id": 1, "count": 101}, "count", "expected at most 100, got 101"),
        ({"token_id": 1, "weight": math.nan}, "weight", "expected a finite number"),
        ({"token_id": 1, "weight": -math.inf}, "weight", "expected a finite number"),
        ({"token_id": 1, "weights": [1.0, math.inf]}, "weights", "expected a finite number"),
        ({"token_id": 1, "bias": {"a": math.nan}}, "bias", "expected a finite number"),
        ({"token_id": 1, "name": 5}, "name", 'expected a text, such as "yes", got 5'),
    ],
)
def test_a_refusal_says_who_what_and_what_came(custom_params, parameter, words):
    error = refusal(custom_params)

    assert error.parameter == parameter
    assert error.processor == "Mine"
    assert str(error).startswith(f"{parameter} of Mine: ")
    assert words in str(error)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tokenid", "did you mean 'token_id'?"),
        ("thinking", "its parameters: token_id, token_ids"),
        ("x" * 10**6, "its parameters:"),
        ("\ud800\n\x1b[31m", r"'\ud800\n\x1b[31m'"),
    ],
)
def test_an_unknown_parameter_is_refused_with_a_hint(name, hint):
    error = refusal({"token_id": 5, name: 1})

    assert hint in str(error)
    assert len(str(error)) < 300
    assert str(error).isascii()


@pytest.mark.parametrize("not_an_object", [5, "x", [1], True])
def test_parameters_are_an_object(not_an_object):
    assert "expected an object of parameters" in str(refusal(not_an_object))


def test_a_refusal_is_short_however_much_came():
    with pytest.raises(InvalidParameter) as caught:
        LoopBreakerLogitProcessor.parse_params(
            {"max_pattern_size": 2, "min_count": 2, "action": "x" * 1_000_000}
        )

    assert ": expected 'ban' or 'end' or 'truncate', got 'xxx" in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("processor", "params", "expected"),
    [
        (
            ScriptLogitProcessor,
            {"scripts": ["Han"], "mode": "é"},
            "mode of ScriptLogitProcessor: expected 'allow' or 'b",
        ),
        (ScriptLogitProcessor, {"scripts": ["Han"], "mode": "ban", "where": ""}, "'everywhere' or"),
        (
            LoopBreakerLogitProcessor,
            {"max_pattern_size": 2, "min_count": 2, "action": "\n"},
            "action of LoopBreakerLogitProcessor: expected 'ban' or 'end' or 'truncate'",
        ),
    ],
)
def test_a_wrong_choice_is_answered_with_the_right_ones(processor, params, expected):
    with pytest.raises(InvalidParameter) as caught:
        processor.parse_params(params)

    assert expected in str(caught.value)
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()


def test_a_rule_that_names_no_parameter_is_about_all_of_them():
    error = refusal({"token_id": 1, "size": 101})

    assert error.parameter is None
    assert "these sizes do not go together" in str(error)


@given(
    st.dictionaries(
        st.sampled_from([*Example.__struct_fields__, "other", "__req__"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
            ),
            max_leaves=5,
        ),
    )
)
def test_whatever_comes_is_taken_or_refused(custom_params):
    try:
        params = parse(Example, "Mine", custom_params)
    except InvalidParameter as error:
        message = str(error)
    else:
        message = ""
        assert isinstance(params.token_id, int)
        assert math.isfinite(params.weight)

    assert len(message) < 500
    assert message.isascii()


@pytest.mark.parametrize(
    "custom_params",
    [
        {"token_id": 9},
        {"token_id": 1, "token_ids": [9, 1]},
        {"token_id": 1, "whitelist": [9]},
    ],
)
def test_ids_that_the_model_does_not_have_are_refused(custom_params):
    params = parse(Example, "Mine", custom_params)
    check_vocabulary(params, "Mine", 10)

    with pytest.raises(InvalidParameter, match=r"0 to 8, got 9; .* another model's") as refused:
        check_vocabulary(params, "Mine", 9)

    assert refused.value.parameter == [*custom_params][-1]


def test_numbers_that_are_no_token_ids_may_be_larger_than_the_vocabulary():
    check_vocabulary(Example(token_id=1, size=50, count=50, weight=50.0), "Mine", 10)


def test_token_ids_are_found_in_nested_types():
    class Nested(Parameters, frozen=True):
        lists: tuple[tuple[TokenId, ...], ...] = ()
        pair: tuple[TokenId, str] | None = None
        either: TokenId | str | None = None
        named: dict[str, TokenId] = msgspec.field(default_factory=dict)

    for wrong in (
        {"lists": ((1,), (), (2, 10))},
        {"pair": (10, "x")},
        {"either": 10},
        {"named": {"a": 1, "b": 10}},
    ):
        with pytest.raises(InvalidParameter, match=f"{next(iter(wrong))}.*got 10"):
            check_vocabulary(Nested(**wrong), "Mine", 10)
    check_vocabulary(Nested(lists=((1,), (2,)), pair=(9, "x"), either="10"), "Mine", 10)


def test_schema_constraints_of_ones_own_are_translated():
    class Own(Parameters, frozen=True):
        share: Annotated[float, msgspec.Meta(ge=0, le=1)]

    with pytest.raises(
        InvalidParameter, match=r"^share of .*: expected a number of at most 1.0, got 1.5"
    ):
        parse(Own, "Mine", {"share": 1.5})


def test_any_mapping_will_do():
    class View(Mapping):
        def __getitem__(self, key):
            return {"token_id": 5}[key]

        def __iter__(self):
            return iter(["token_id"])

        def __len__(self):
            return 1

    assert parse(Example, "Mine", View()) == Example(token_id=5)


def test_a_default_may_be_infinite_though_no_request_may_ask_for_it():
    class Capped(Parameters, frozen=True):
        cap: float = math.inf

    assert parse(Capped, "P", {}).cap == math.inf
    with pytest.raises(InvalidParameter, match="finite"):
        parse(Capped, "P", {"cap": math.inf})


class Renamed(Parameters, frozen=True):
    renamed: ClassVar[Mapping[str, str]] = {"stop_id": "stop_ids", "size": "count"}

    stop_ids: TokenIds = ()
    count: PositiveInt | None = None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"stop_id": 2}, {"stop_ids": [2]}),
        ({"stop_id": [2, 3]}, {"stop_ids": [2, 3]}),
        ({"stop_id": 2, "__req__": None}, {"stop_ids": [2]}),
    ],
)
def test_an_old_name_of_a_parameter_works(old, new):
    assert parse(Renamed, "Mine", old) == parse(Renamed, "Mine", new)


def test_the_log_says_once_what_an_old_name_is_called_now(caplog):
    for _ in range(3):
        parse(Renamed, "Logged", {"stop_id": 2})
        parse(Renamed, "Logged", {"stop_ids": [2]})

    assert [record.getMessage() for record in caplog.records] == [
        "Logged: parameter stop_id is deprecated; its name is stop_ids now"
    ]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_id": 2, "stop_ids": [2]}, "^stop_id of .*: given together with stop_ids"),
        ({"stop_id": "2"}, "^stop_ids of .*: expected a list"),
        ({"stop_id": True}, "^stop_ids of .*: expected a whole number"),
        ({"stop_id": -1}, "^stop_ids of .*: expected a whole number of 0 or more, got -1 at"),
    ],
)
def test_a_wrong_value_under_an_old_name_is_refused(params, message):
    with pytest.raises(InvalidParameter, match=message):
        parse(Renamed, "Mine", params)
