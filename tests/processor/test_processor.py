"""SGLang's contract, as LogitProcessor honours it."""

import json
import math
import sys

import dill
import pytest
import torch

from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.builtins import (
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    Qwen3ThinkingBudgetLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from sglang_lp.errors import InvalidParameter, PayloadRefused, RefusalReason, Unsupported
from sglang_lp.flags import Flags
from sglang_lp.links import Serving, prepare
from sglang_lp.params import Parameters, TokenId
from sglang_lp.params.parsed import parse_once
from sglang_lp.processor import LogitProcessor
from sglang_lp.processor_base import ProcessorBase
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest

VOCAB = 6


class BansOne(LogitProcessor):
    needs = History.POSITION

    class Params(Parameters, frozen=True):
        token_id: TokenId

    def edit(self, request, edits):
        edits.ban([request.params.token_id])


class ChangesNothing(LogitProcessor):
    needs = History.NONE
    early = exclusion_only = True

    def edit(self, request, edits):
        pass


class BansAnother(BansOne):
    pass


class AddsOne(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits + 1


class CallsSuper(LogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return super().__call__(logits, custom_param_list)


class EditsNothing(LogitProcessor):
    pass


# Calls


def test_a_call_edits_in_place_and_returns_what_it_was_given():
    logits = torch.zeros(2, VOCAB)
    requests = [FakeRequest([1]).custom_params({"token_id": i}) for i in (1, 2)]

    assert BansOne()(logits, requests) is logits
    assert (logits == -math.inf).nonzero().tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_without_parameters_nothing_happens(nothing):
    logits = torch.zeros(1, VOCAB)

    assert BansOne()(logits, nothing) is logits
    assert not logits.any()


def test_a_row_without_parameters_is_left_alone():
    logits = torch.zeros(2, VOCAB)

    BansOne()(logits, [None, FakeRequest([1]).custom_params({"token_id": 3})])

    assert not logits[0].any()
    assert logits[1, 3] == -math.inf


@pytest.mark.parametrize("rows", [1, 3])
def test_there_is_one_entry_for_each_row(rows):
    with pytest.raises(ValueError, match=f"got 2 for {rows} rows"):
        BansOne()(torch.zeros(rows, VOCAB), [None, None])


def test_parameters_that_do_not_fit_are_an_error_without_a_server():
    with pytest.raises(InvalidParameter, match="token_id"):
        BansOne()(torch.zeros(1, VOCAB), [FakeRequest([1]).custom_params({})])


@pytest.mark.parametrize("params", [{}, {"token_id": "x"}, {"token_id": VOCAB}, {"x": 1}])
def test_parameters_that_do_not_fit_end_their_request_alone(params):
    pytest.importorskip("sglang")
    bad, good = FakeRequest([1], served=True), FakeRequest([1], served=True)
    requests = [bad.custom_params(params), good.custom_params({"token_id": 2})]
    for _ in range(2):
        logits = torch.zeros(2, VOCAB)
        BansOne()(logits, requests)
        assert not logits[0].any()
        assert logits[1, 2] == -math.inf

    assert bad.to_finish.status_code == 400
    assert "BansOne" in bad.to_finish.message
    assert good.to_finish is None


def test_a_request_that_cannot_be_seen_is_missed():
    with pytest.raises(Unsupported, match="FakeRequest"):
        BansOne()(torch.zeros(1, VOCAB), [{"token_id": 1}])


def test_edits_that_need_no_history_need_no_request():
    logits = DisallowedTokensLogitsProcessor()(torch.zeros(1, VOCAB), [{"token_ids": [1]}])

    assert logits[0, 1] == -math.inf


def test_state_is_the_requests_and_survives_a_new_instance():
    request = FakeRequest([1])
    params = request.custom_params({"token_ids": [4, 5]})
    for token_id in (4, 5):
        logits = ForcedSequenceLogitProcessor()(torch.zeros(1, VOCAB), [params])
        assert logits.argmax() == token_id
        request.append(token_id)


def test_the_row_of_a_request_dies_with_its_parameters():
    request = FakeRequest([1])
    params = request.custom_params({"token_id": 1})
    BansOne()(torch.zeros(1, VOCAB), [params])
    (row,) = rows_of([params])

    assert row.source is request
    assert (
        rows_of([None, {}, {"__req__": request}, {**params, "__req__": FakeRequest([1])}])
        == [None] * 4
    )


def test_what_a_row_is_kept_under_cannot_come_from_json():
    params = FakeRequest([1]).custom_params({})
    attach_row(params, [Serving(EditsNothing(), None)])

    assert [type(key) for key in params] != [str] * len(params)


def test_a_class_without_edit_says_what_is_missing():
    with pytest.raises(Exception, match="EditsNothing overrides neither"):
        EditsNothing()(torch.zeros(1, VOCAB), [FakeRequest([1]).custom_params({})])


def test_a_class_that_overrides_call_gets_whole_rows():
    assert AddsOne.dense
    assert not BansOne.dense
    assert AddsOne()(torch.zeros(1, 2), [None]).tolist() == [[1.0, 1.0]]


def test_calling_the_base_from_an_override_says_what_to_do_instead():
    with pytest.raises(NotImplementedError, match=r"override edit\(\) instead"):
        CallsSuper()(torch.zeros(1, 2), [None])


# Payloads


@pytest.mark.parametrize("cls", [BansOne, DisallowedTokensLogitsProcessor, AddsOne])
def test_a_payload_is_sglangs(cls):
    # The test module is not importable by name; a processor of one's own is.
    sys.modules.setdefault(cls.__module__, sys.modules[__name__])
    payload = cls.to_str()

    assert json.loads(payload) == {"callable": json.loads(payload)["callable"]}
    assert payload == json.dumps(json.loads(payload))
    assert dill.loads(bytes.fromhex(json.loads(payload)["callable"])) is cls
    assert type(cls.from_str(payload)) is cls


def test_a_base_finds_its_subclasses_by_their_payload():
    payload = Qwen3ThinkingBudgetLogitProcessor.to_str()

    found = ThinkingBudgetLogitProcessor.from_str(payload)

    assert type(found) is Qwen3ThinkingBudgetLogitProcessor
    assert type(LogitProcessor.from_str(payload)) is Qwen3ThinkingBudgetLogitProcessor


@pytest.mark.parametrize(
    "payload",
    [
        DisallowedTokensLogitsProcessor.to_str(),
        LogitProcessor.to_str(),
        "",
        "{}",
        json.dumps({"callable": dill.dumps(print).hex()}),
    ],
)
def test_a_payload_of_anything_else_is_refused(payload):
    with pytest.raises(PayloadRefused) as refusal:
        ThinkingBudgetLogitProcessor.from_str(payload)

    assert refusal.value.reason is RefusalReason.NOT_ALLOWED


def test_a_local_class_travels_as_code_and_is_not_found_by_name():
    class Local(LogitProcessor):
        def edit(self, request, edits):
            edits.ban([0])

    payload = Local.to_str()

    assert dill.loads(bytes.fromhex(json.loads(payload)["callable"])).__name__ == "Local"
    with pytest.raises(PayloadRefused):
        Local.from_str(payload)


def test_a_class_of_main_travels_as_code_because_another_process_has_another_main(monkeypatch):
    own = type("Mine", (LogitProcessor,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Mine", own, raising=False)
    payload = own.to_str()

    monkeypatch.delattr(sys.modules["__main__"], "Mine")
    assert dill.loads(bytes.fromhex(json.loads(payload)["callable"])) is not own
    with pytest.raises(PayloadRefused):
        own.from_str(payload)


# Parameters


def test_parameters_are_those_of_the_class():
    assert BansOne.parse_params({"token_id": 3}).token_id == 3
    with pytest.raises(InvalidParameter, match="BansAnother"):
        BansAnother.parse_params({})
    with pytest.raises(InvalidParameter, match="0 to 2"):
        BansOne.parse_params({"token_id": 3}, 3)


@pytest.mark.parametrize("nothing", [None, {}])
def test_no_parameters_fit_where_none_are_required(nothing):
    assert AddsOne.parse_params(nothing) == Parameters()


def test_long_lists_are_parsed_once_and_as_strictly_as_short_ones():
    kind, ids = DisallowedTokensLogitsProcessor, [*range(100)]
    first = parse_once(kind, {"token_ids": ids}, 200)

    assert parse_once(kind, {"token_ids": [*ids]}, 200) is first
    for wrong in (True, 1.0, "1"):
        with pytest.raises(InvalidParameter):
            parse_once(kind, {"token_ids": [0, wrong, *ids[2:]]}, 200)
    with pytest.raises(InvalidParameter, match="0 to 98"):
        parse_once(kind, {"token_ids": ids}, 99)
    with pytest.raises(InvalidParameter, match="unknown"):
        parse_once(kind, {"token_ids": ids, "other": 1}, 200)


def test_copies_of_a_request_are_fitted_to_the_served_model_once():
    fitted = []

    class Fits(DisallowedTokensLogitsProcessor):
        @classmethod
        def fit_params(cls, params, served):
            fitted.append(served)
            return super().fit_params(params, served)

    params, one, other = {"token_ids": [*range(100)]}, ServedModel(), ServedModel(object())
    first = prepare(Fits(), params, one)[0].params
    assert prepare(Fits(), {"token_ids": [*range(100)]}, one)[0].params is first
    assert len(fitted) == 1
    prepare(Fits(), params, other)
    prepare(Fits(), {"token_ids": [1]}, one)
    prepare(Fits(), {"token_ids": [1]}, one)
    assert fitted == [one, other, one, one]


# The contract


def test_an_author_finds_the_members_to_override_in_one_class():
    own = {*vars(LogitProcessor)} | {*LogitProcessor.__annotations__}
    parameters = {"Params", "example", "fit_params"}
    flags = {"needs", "early", "exclusion_only", "finishes"}
    steps = {"start", "advance", "fork", "edit"}
    beside = {"foresee", "explain", "report", "compute"}
    sglangs = {"to_str", "from_str"}

    assert {name for name in own if name[0] != "_"} == parameters | flags | steps | beside | sglangs


def test_every_flag_is_read_of_each_processor():
    declared = {**ProcessorBase.__annotations__, **LogitProcessor.__annotations__}
    flags = {name for name, kind in declared.items() if kind in {"bool", "History"}}

    assert {"name", *flags} == {*Flags._fields}


@pytest.mark.parametrize("flag", Flags._fields[1:])
def test_one_processor_gives_its_row_a_flag_that_holds_for_all(flag):
    least = Flags.of(ChangesNothing())
    changed = History.TOKENS if flag == "needs" else not getattr(least, flag)
    other = least._replace(**{flag: changed})

    for both in ((least, other), (other, least)):
        row = attach_row({}, [Serving(ChangesNothing(), None, known=known) for known in both])
        assert getattr(row.flags, flag) == changed
    row = attach_row({}, [Serving(ChangesNothing(), None) for _ in range(2)])
    assert row.flags[1:] == least[1:]
