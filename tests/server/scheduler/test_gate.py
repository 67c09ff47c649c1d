"""The gate in the scheduler, on requests as SGLang makes them there."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import weakref
from array import array
from types import SimpleNamespace

import dill
import pytest

from sglang_lp import wire
from sglang_lp._engine.apply.raw import RawLogprobs
from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.builtins import (
    DisallowedTokensLogitsProcessor,
    DRYLogitProcessor,
    LoopBreakerLogitProcessor,
)
from sglang_lp.errors import InstallError, PayloadRefused, RequestError
from sglang_lp.policy.sections import Chosen
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.gate.guard import DECIDED, Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.server.gate.reserved_keys import MAKING, REFUSAL, THOUGHT, add_own
from sglang_lp.server.scheduler import endings, gate
from sglang_lp.server.scheduler.beams.beam_host import BeamHost
from sglang_lp.server.scheduler.closing_request import ending_of
from sglang_lp.server.scheduler.gate import (
    InertProcessor,
    NoLoads,
    SchedulerGate,
    refuse_to_load,
)
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sglang_host import Contradicts, SglangHost
from sglang_lp.trust import Gate, Policy
from support.fakes.requests import Req

PAYLOAD = DisallowedTokensLogitsProcessor.to_str()
EVIL = wire.payload_for("os", "abort")


class Plus:
    """A class with only SGLang's interface."""

    def __call__(self, logits, _params):
        return logits + 1


class Unfinished:
    """An allowed class that cannot even be made."""

    def __init__(self):
        raise KeyError("its own mistake")


class Unparsable(LogitProcessor):
    """One that fails before that."""

    @classmethod
    def parse_params(cls, custom_params, vocab_size=None):
        raise KeyError("its own mistake")


class Unfitting(LogitProcessor):
    @classmethod
    def fit_params(cls, params, served):
        raise SystemExit("its own mistake")


class Unserved(LogitProcessor):
    def serving(self, params):
        raise asyncio.CancelledError("its own mistake")


class Leaves:
    def __init__(self):
        raise SystemExit("its own mistake")


class Unneeded(LogitProcessor):
    @property
    def needs(self):
        raise MemoryError("its own mistake")


class Unready(LogitProcessor):
    """One that fails as its request begins."""

    def start(self, request):
        raise KeyError("its own mistake")


@pytest.fixture
def allowing(monkeypatch):
    """Return a function that gives a guard allowing a class under the text ``payload``."""

    def allowing(processor):
        guard = Guard(Policy.default())
        allowed = SimpleNamespace(name="m:C", processor=processor, payload="its payload")
        monkeypatch.setattr(guard.verifier, "lookup", lambda _payload: allowed)
        return guard

    return allowing


def admit(guard, req):
    # A value would replace what the constructor returned.
    gate = SchedulerGate(guard, PendingResults(), Arrivals())
    assert gate.admit_req(None, req, "more", of="SGLang's") is None


def test_a_request_without_a_processor_is_not_looked_at(guard):
    req = Req(None, {"thinking_budget": -1})
    del req.sampling_params.custom_params["__req__"]
    before = {**vars(req)}
    admit(guard, req)

    assert vars(req) == before
    assert req.sampling_params.custom_params == {"thinking_budget": -1}


def test_a_parameter_that_no_processor_takes_is_refused(guard):
    req = Req(None, {"thinking_budgets": 5})
    admit(guard, req)

    assert req.ended.status == 400
    assert req.ended.message == (
        "custom_params: no processor of this request takes 'thinking_budgets'; did you mean "
        "'thinking_budget'?"
    )


SGLANGS = [
    {"__sglang_reasoning_end_token_ids": [1]},
    {"__sglang_reasoning_end_token_ids": [1, 2]},
    {"__sglang_reasoning_end_token_ids": [0] * 32, "__sglang_reasoning_in_grammar": True},
]
NOT_SGLANGS = [
    {"__sglang_reasoning_end_token_ids": []},
    {"__sglang_reasoning_end_token_ids": [0] * 33},
    {"__sglang_reasoning_end_token_ids": [-1]},
    {"__sglang_reasoning_end_token_ids": [True]},
    {"__sglang_reasoning_end_token_ids": [[1]]},
    {"__sglang_reasoning_end_token_ids": {"1": 1}},
    {"__sglang_reasoning_in_grammar": 1},
    {"__sglang_reasoning_in_grammar": False},
    {"__sglang_anything": True},
    {REFUSAL: 5},
]


@pytest.mark.parametrize("payload", [None, PAYLOAD])
@pytest.mark.parametrize("own", SGLANGS)
def test_what_sglang_added_passes(guard, payload, own):
    given = {"token_ids": [7]} if payload else {"thinking_budget": -1}
    req = Req(payload, {**given, **own})
    admit(guard, req)

    assert req.ended is None


@pytest.mark.parametrize("payload", [None, PAYLOAD])
@pytest.mark.parametrize("own", NOT_SGLANGS)
def test_what_sglang_cannot_have_added_ends_its_own_request(guard, payload, own):
    req = Req(payload, {"token_ids": [7], **own})
    admit(guard, req)

    message, status, _ = req.ended
    assert message == f"custom_params: {next(iter(own))!r} is SGLang's own; leave it out"
    assert status == 400
    assert guard.audit.counts == {("scheduler", "invalid_request"): 1}


def test_sglangs_request_passes_as_itself_and_as_a_proxy(guard):
    for payload, given in ((None, {"thinking_budget": -1}), (PAYLOAD, {"token_ids": [7]})):
        req = Req(payload, {**given})
        admit(guard, req)
        assert req.ended is None
        # As SGLang before 0.5.23.
        req.sampling_params.custom_params = {**given, "__req__": req}
        admit(guard, req)
        assert req.ended is None


def test_a_request_of_a_clients_making_is_not_one(guard):
    req = Req(None, {})
    req.sampling_params.custom_params["__req__"] = {"output_ids": []}
    admit(guard, req)

    assert req.ended[1] == 400


def test_a_request_that_refers_to_itself_is_one_of_sglang_0_5_18(guard):
    req = Req(PAYLOAD, {"token_ids": [7]})
    req.sampling_params.custom_params["__req__"] = req
    admit(guard, req)

    assert req.ended is None
    (row,) = rows_of([req.sampling_params.custom_params])
    assert row.source is req


def test_a_request_that_refers_to_another_is_refused(guard):
    req = Req(PAYLOAD, {"token_ids": [7]})
    req.sampling_params.custom_params["__req__"] = Req(None, None)
    admit(guard, req)

    assert req.ended[1] == 400


@pytest.mark.parametrize("text", ["DisallowedTokensLogitsProcessor", PAYLOAD])
def test_an_allowed_request_has_its_row_and_the_operators_spelling(guard, text):
    req = Req(text, {"token_ids": [7]})
    sampling = req.sampling_params
    admit(guard, req)

    assert req.custom_logit_processor == PAYLOAD
    assert req.sampling_params is sampling
    assert req.ended is None
    (row,) = rows_of([sampling.custom_params])
    assert type(row.turns[0].processor) is DisallowedTokensLogitsProcessor
    assert row.turns[0].request.params.token_ids == (7,)
    assert row.source is sampling.custom_params["__req__"]
    # The plugin reads pending results, so the history is never behind here.
    assert row.turns[0].request.may_lag is False


# Construction 46: a payload that was checked in the HTTP process only, CVE-2026-3059.
@pytest.mark.parametrize(
    ("payload", "params", "reason"),
    [
        (EVIL, {}, "not_allowed"),
        ("", {}, "malformed"),
        (PAYLOAD, {}, "invalid_parameter"),
        (PAYLOAD, None, "invalid_parameter"),
        (PAYLOAD, {"token_ids": [100]}, "invalid_parameter"),
    ],
)
def test_what_did_not_pass_admission_ends_its_own_request_as_a_bad_one(
    guard, payload, params, reason
):
    req = Req(payload, params, vocab_size=100)
    admit(guard, req)

    assert req.custom_logit_processor is None
    message, status, kind = req.ended
    parameter = r"(custom_logit_processor|\w+ of DisallowedTokensLogitsProcessor): "
    assert re.match(parameter, message)
    assert (status, kind) == (400, "BadRequestError")
    assert rows_of([req.sampling_params.custom_params]) == [None]
    assert guard.audit.counts == {("scheduler", reason): 1}


@pytest.mark.parametrize(
    ("mode", "room", "awaited"),
    [("prefill", 7, True), ("prefill", 0, True), ("prefill", None, False), ("decode", 7, False)],
)
def test_where_a_decode_server_waits_for_a_refused_request_it_hears_of_it(
    guard, mode, room, awaited
):
    pending, req = PendingResults(), Req(EVIL, {})
    pending.scheduler = SimpleNamespace(disaggregation_mode=SimpleNamespace(value=mode))
    req.bootstrap_room = room
    SchedulerGate(guard, pending, Arrivals()).admit_req(None, req)

    if not awaited:
        assert req.ended[1:] == (400, "BadRequestError")
        assert req.custom_logit_processor is None
        return
    assert req.ended is None
    assert req.custom_logit_processor == DECIDED
    (row,) = rows_of([req.sampling_params.custom_params])
    assert row.host.pending is pending
    with pytest.raises(PayloadRefused):
        row.turns[0].processor.edit(row.turns[0].request, None)


def test_the_placeholder_of_a_refused_request_ends_with_the_refusal(guard):
    coded = Coded("n: expected less", "invalid_parameter", "n", by_client=True)
    req = Req(None, add_own(None, REFUSAL, coded.text))
    admit(guard, req)

    assert req.ended == (coded.message, 400, "BadRequestError")
    assert Coded.of_reason(req.to_finish.to_json()) == coded


def test_a_placeholder_that_tells_no_refusal_is_refused(guard):
    req = Req(None, add_own(None, REFUSAL, "expected less"))
    admit(guard, req)

    assert req.ended[0].startswith("custom_params: '__sglang_lp_refused' is SGLang's own")
    assert req.ended[1] == 400


@pytest.fixture
def asked(guard, monkeypatch):
    """Record the intakes that the guard gets, and run nothing."""
    asked = []
    monkeypatch.setattr(guard, "admit", asked.append)
    return asked


def test_the_guard_is_asked_about_all_that_a_request_asks_for(guard, asked):
    admit(guard, Req(PAYLOAD, {"token_ids": [7]}))
    req = Req(PAYLOAD, {"token_ids": [7]})
    vars(req).update(return_sampling_mask=1, return_logprob=1, require_reasoning=1)
    vars(req.sampling_params).update(top_k=1, beam_width=3, max_new_tokens=9)
    admit(guard, req)

    one = {"payload": PAYLOAD, "custom_params": {"token_ids": [7]}, "prompt_tokens": 3}
    everything = {"beam_width": 3, "sampled": False, "limit": 9}
    everything |= dict.fromkeys(("masked", "logprobs", "reasoning"), True)
    assert asked == [Intake(**one), Intake(**one, **everything)]


@pytest.mark.parametrize(("own", "reasoning"), [({}, True), ({THOUGHT: True}, False)])
def test_an_answer_whose_reasoning_has_ended_does_not_begin_with_it(guard, asked, own, reasoning):
    admit(guard, Req(PAYLOAD, {"token_ids": [7], **own}, require_reasoning=True))

    assert [one.reasoning for one in asked] == [reasoning]


@pytest.mark.parametrize(
    ("asks_for", "longest", "limit"),
    [(None, 50, 46), (10, 50, 10), (100, 50, 46), (100, None, 100), (None, None, None), (5, 3, 0)],
)
def test_a_request_gets_no_more_tokens_than_the_server_has_room_for(
    guard, asked, asks_for, longest, limit
):
    pending, req = PendingResults(), Req(PAYLOAD, {"token_ids": [7]})
    pending.scheduler = SimpleNamespace(max_req_len=longest)
    req.sampling_params.max_new_tokens = asks_for
    SchedulerGate(guard, pending, Arrivals()).admit_req(None, req)

    assert [one.limit for one in asked] == [limit]


def test_what_begins_is_counted_by_what_the_client_may_know(guard, monkeypatch):
    begun = []
    monkeypatch.setattr(gate, "writing", lambda: SimpleNamespace(begin=begun.append))
    admitted = guard.admit(Intake(PAYLOAD, {"token_ids": [7]}))._replace(names=())
    admit(guard, Req(None, None))
    admit(guard, Req(PAYLOAD, {"token_ids": [7]}))
    monkeypatch.setattr(guard, "admit", lambda *_given, **_more: admitted)
    admit(guard, Req(PAYLOAD, {"token_ids": [7]}))

    assert begun == [("none",), ("DisallowedTokensLogitsProcessor",), ("always",)]


BUDGET_OF_5 = {"thinking_start_token_id": 1, "thinking_end_token_id": 2, "thinking_budget": 5}


@pytest.mark.parametrize(
    ("strict", "payload", "params", "budget"),
    [
        (True, "ThinkingBudgetLogitProcessor", BUDGET_OF_5, -1),
        (False, "ThinkingBudgetLogitProcessor", BUDGET_OF_5, 5),
        (True, PAYLOAD, {"token_ids": [7]}, None),
    ],
)
def test_a_budget_is_kept_once_where_sglang_keeps_budgets_too(
    guard, strict, payload, params, budget
):
    guard.server.reasoning = SimpleNamespace(strict=strict)
    req = Req(payload, params)
    sampling = req.sampling_params
    admit(guard, req)

    assert req.sampling_params.custom_params.get("thinking_budget") == budget
    (row,) = rows_of([req.sampling_params.custom_params])
    assert getattr(row.turns[0].request.params, "thinking_budget", None) == params.get(
        "thinking_budget"
    )
    # Others may share its sampling parameters.
    assert sampling.custom_params.get("thinking_budget") == params.get("thinking_budget")


def test_a_class_that_reads_parameters_itself_reads_what_the_operator_left_of_them(
    guard, monkeypatch
):
    admitted = guard.admit(Intake(PAYLOAD, {"token_ids": [7]}))._replace(
        custom_params={"token_ids": [8]}
    )
    monkeypatch.setattr(guard, "admit", lambda *_given, **_more: admitted)
    req = Req(PAYLOAD, {"token_ids": [7]})
    admit(guard, req)

    given = dict(req.sampling_params.custom_params)
    assert given.pop("__req__") is not None
    assert given["token_ids"] == [8]


def test_a_row_knows_under_what_its_request_was_admitted(guard):
    guard.server.vocab_size, pending, started = 50, PendingResults(), []
    arrivals = SimpleNamespace(
        start=lambda row, vocab_size, making: started.append((row, vocab_size, making))
    )
    hosts = []
    for generated, raw, own in ((0, False, {}), (2, True, {MAKING: 250})):
        req = Req(PAYLOAD, {"token_ids": [7], "raw_logprobs": raw, **own})
        req.return_logprob = True
        req.output_ids = array("q", range(generated))
        SchedulerGate(guard, pending, arrivals).admit_req(None, req)
        (row,) = rows_of([req.sampling_params.custom_params])
        hosts.append(row.host)
        # An answer that goes on is not asked for its first edits.
        assert started.pop() == (row, None if generated else 50, own.get(MAKING))

    for host in hosts:
        assert host.pending is pending
        assert host.names == ("DisallowedTokensLogitsProcessor",)
        assert host.policy == guard.fingerprint
    assert [type(host.raw) for host in hosts] == [type(None), RawLogprobs]


DECIDES = Policy(
    always=(Chosen(processor="DisallowedTokensLogitsProcessor", params={"token_ids": [7]}),)
)

#: A prompt with a long thought is to be closed where another text is to begin.
READS_PROMPT = Policy(
    always=(Chosen(processor="ForcedSequenceLogitProcessor", params={"token_ids": [7]}),),
    defaults=Chosen(
        processor="ThinkingBudgetLogitProcessor",
        params={
            "thinking_budget": 1,
            "thinking_start_token_id": 3,
            "thinking_end_token_id": 4,
        },
    ),
)


@pytest.mark.parametrize(
    ("policy", "payload", "params", "party"),
    [
        (Policy.default(), PAYLOAD, {"token_ids": [7]}, Contradicts.CLIENT),
        (DECIDES, None, None, Contradicts.POLICY),
        (DECIDES, PAYLOAD, {"token_ids": [8]}, Contradicts.BOTH),
        (READS_PROMPT, None, None, Contradicts.BOTH),
    ],
)
def test_whoever_chose_the_edits_is_at_fault_if_they_leave_no_token(policy, payload, params, party):
    req = Req(payload, params)
    admit(Guard(policy), req)

    (row,) = rows_of([req.sampling_params.custom_params])
    assert row.host.contradicts is party


def test_a_class_of_the_operator_is_at_fault_if_its_edits_leave_no_token(allowing):
    req = Req("any", {})
    admit(allowing(Plus), req)

    (row,) = rows_of([req.sampling_params.custom_params])
    assert row.host.contradicts is Contradicts.CLASS


def test_a_beam_search_whose_beams_cannot_be_followed_ends_alone(guard):
    req = Req(LoopBreakerLogitProcessor.to_str(), {"action": "end"})
    req.sampling_params.beam_width = 2
    admit(guard, req)

    assert "beam_width: expected 1" in req.ended[0]
    assert req.custom_logit_processor is None


@pytest.mark.parametrize(("width", "host"), [(None, SglangHost), (1, SglangHost), (2, BeamHost)])
def test_each_beam_of_a_beam_search_has_a_host(guard, width, host):
    req = Req(PAYLOAD, {"token_ids": [7]})
    req.sampling_params.beam_width = width
    admit(guard, req)

    (row,) = rows_of([req.sampling_params.custom_params])
    assert type(row.host) is host


def test_with_pipeline_ranks_a_request_with_beam_width_records_what_it_decides(guard):
    guard.server.stages = 2
    req = Req(PAYLOAD, {"token_ids": [7]})
    req.sampling_params.beam_width = 2  # such as in a session that does not exist
    admit(guard, req)

    (row,) = rows_of([req.sampling_params.custom_params])
    assert row.host.acts == []
    row.recorder.add(3, forced=True)
    assert row.host.acts == [("add", 3, True)]


def test_the_requests_vocabulary_is_checked_and_else_the_one_that_is_known(guard):
    guard.server.vocab_size = 50
    for known in (None, 0):
        req = Req(PAYLOAD, {"token_ids": [50]}, vocab_size=known)
        admit(guard, req)
        assert req.ended is not None
    req = Req(PAYLOAD, {"token_ids": [50]}, vocab_size=51)
    admit(guard, req)
    assert req.ended is None
    req = Req(PAYLOAD, {"token_ids": [50]})
    del req.vocab_size
    admit(guard, req)
    assert req.ended is None, "the one that the request before had"


def test_a_request_without_parameters_gets_its_history_all_the_same(guard):
    req = Req(DRYLogitProcessor.to_str(), None)
    shared = req.sampling_params
    admit(guard, req)

    assert shared.custom_params is None, "other requests may share it"
    assert req.sampling_params is not shared
    custom_params = req.sampling_params.custom_params
    assert type(custom_params["__req__"]) is weakref.ProxyType
    assert custom_params["__req__"].ended is None
    (row,) = rows_of([custom_params])
    assert type(row.turns[0].processor) is DRYLogitProcessor


def test_a_class_that_follows_sglangs_contract_alone_runs_in_a_wrapper(allowing):
    req = Req("any", {})
    admit(allowing(Plus), req)

    assert req.custom_logit_processor == "its payload"
    (row,) = rows_of([req.sampling_params.custom_params])
    assert (row.turns[0].processor.name, row.turns[0].processor.foreign) == ("Plus", Plus)


@pytest.fixture
def failed(monkeypatch):
    """Record the errors that metrics count as failures before a request began."""
    failed = []
    metrics = SimpleNamespace(begin=lambda _names: None, fail=failed.append)
    for module in (gate, endings):
        monkeypatch.setattr(module, "writing", lambda: metrics)
    return failed


# Construction 52.
@pytest.mark.parametrize(
    "processor", [Unfinished, Unparsable, Unfitting, Unserved, Leaves, Unneeded, Unready]
)
def test_an_allowed_class_that_fails_early_ends_its_own_request_is_logged_and_is_counted(
    allowing, caplog, failed, processor
):
    req = Req("any", {}, rid="0" * 32)
    with caplog.at_level(logging.WARNING, logger="sglang_lp"):
        admit(allowing(processor), req)

    message, *status = req.ended
    name = processor.__name__
    assert message.startswith(f"{name} failed before its request began: ")
    assert "its own mistake" in message
    assert status == [500, "InternalServerError"]
    assert Coded.of_reason(req.to_finish.to_json()) == Coded(message, "processor_fault")
    assert req.custom_logit_processor is None
    assert "its own mistake" in caplog.text
    assert caplog.messages[-1] == f"request {req.rid} ended: {message}"
    assert failed == [Coded(message, "processor_fault", culprit=name)]


def test_a_mistake_in_the_gate_ends_its_own_request_is_logged_and_is_counted(
    guard, monkeypatch, caplog, failed
):
    mistake = ZeroDivisionError("a mistake")

    def fail(*_args, **_kwargs):
        raise mistake

    monkeypatch.setattr(guard, "admit", fail)
    req = Req(PAYLOAD, {"token_ids": [1]})
    admit(guard, req)

    message, status, _ = req.ended
    assert message == "sglang-lp failed before its request began: 'ZeroDivisionError: a mistake'"
    assert status == 500
    assert Coded.of_reason(req.to_finish.to_json()) == Coded(message, "internal_error")
    assert req.custom_logit_processor is None
    assert "Traceback" in caplog.text
    assert failed == [Coded(message, "internal_error")]


@pytest.mark.parametrize("params", [{"token_ids": [[1]]}, {"x": math.nan}, {"x": 2**63}])
def test_parameters_without_a_schema_are_flat_and_finite(allowing, params):
    req = Req("any", params)
    admit(allowing(Plus), req)

    assert req.ended[0].startswith("custom_params: expected an object of finite numbers")
    assert req.ended[1] == 400


def test_a_refusal_in_the_scheduler_says_so_in_the_audit_trail(guard, caplog):
    with caplog.at_level(logging.WARNING, logger="sglang_lp.audit"):
        for rid in ("0" * 32, "Bob"):
            req = Req(EVIL, {})
            req.rid = rid
            admit(guard, req)

    found = [json.loads(message) for message in caplog.messages]
    assert [line["gate"] for line in found] == [Gate.SCHEDULER] * 2
    assert found[0]["rid"] == "0" * 32
    assert found[1]["rid"].startswith("sha256:")


class Queue:
    """SGLang's scheduler, as far as a request that it cannot make meets it."""

    def __init__(self):
        self.model_config, self.tokenizer = SimpleNamespace(vocab_size=100), object()
        self.limited, self.queue = [], []
        self.init_req_max_new_tokens = self.limited.append
        self._add_request_to_queue = self.queue.append


def receiving(guard, scheduler, failing, **fields):
    from sglang.srt.observability.req_time_stats import APIServerReqTimeStats
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(max_new_tokens=50, temperature=0.5)
    sent = SimpleNamespace(
        rid="a client's",
        sampling_params=sampling,
        http_worker_ipc="ipc",
        time_stats=APIServerReqTimeStats(created_time=7.0),
        **fields,
    )
    gate = SchedulerGate(guard, PendingResults(), Arrivals())
    with get_parallel().override(tp_rank=0):
        gate.receive(failing, scheduler, sent, more=1)
    return sent


def test_a_request_that_sglang_can_receive_is_only_passed_on(guard):
    scheduler, seen = Queue(), []
    sent = receiving(guard, scheduler, lambda *given, **more: seen.append((given, more)))

    assert seen == [((scheduler, sent), {"more": 1})]
    assert scheduler.queue == []


# `ModelRunner._extend_forward_kwargs` calls the method, and writes the embeddings over those of the
# prompt: one request to /v1/score ended the scheduler of a model without it.
@pytest.mark.parametrize(
    ("width", "model", "problem"),
    [
        (2, {"get_input_embeddings": None}, "expected embeddings of 64 numbers"),
        (64, {}, "expected none, as the served model"),
        (64, {"get_input_embeddings": None}, None),
    ],
)
def test_embeddings_that_the_model_cannot_take_end_their_own_request(guard, width, model, problem):
    from sglang.srt.managers.embed_types import PositionalEmbeds
    from torch import zeros

    scheduler, seen = Queue(), []
    scheduler.model_config.hidden_size = 64
    runner = SimpleNamespace(model=SimpleNamespace(**model))
    scheduler.tp_worker = SimpleNamespace(model_runner=runner)
    given = PositionalEmbeds(embeds=[zeros(width)], positions=[0])
    receiving(guard, scheduler, lambda *_, **__: seen.append(1), positional_embed_overrides=given)

    assert seen == ([] if problem else [1])
    assert [problem in req.to_finish.message for req in scheduler.queue] == [True] * bool(problem)
    if not model:
        assert scheduler.queue[0].to_finish.message == (
            "positional_embed_overrides: expected none, as the served model takes no embeddings in "
            "the place of tokens; leave them out"
        )


@pytest.mark.parametrize(
    ("widths", "forward", "dtype", "problem"),
    [
        ((64, 2), lambda input_embeds: 0, "bfloat16", "expected embeddings of 64 numbers"),
        ((64, 64), lambda input_ids: 0, "bfloat16", "expected none, as the served model"),
        ((64, 64), lambda input_embeds: 0, "float16", "expected none, as the served model"),
        ((64, 64), lambda input_embeds: 0, "bfloat16", None),
    ],
)
def test_input_embeds_that_the_model_cannot_take_end_their_own_request(
    guard, widths, forward, dtype, problem
):
    scheduler, seen = Queue(), []
    scheduler.model_config.hidden_size = 64
    scheduler.model_config.dtype = f"torch.{dtype}"
    runner = SimpleNamespace(model=SimpleNamespace(forward=forward))
    scheduler.tp_worker = SimpleNamespace(model_runner=runner)
    given = [[0.5] * width for width in widths]
    receiving(guard, scheduler, lambda *_, **__: seen.append(1), input_embeds=given)

    assert seen == ([] if problem else [1])
    assert [problem in req.to_finish.message for req in scheduler.queue] == [True] * bool(problem)


@pytest.mark.parametrize("error", [KeyError("replaced"), RequestError("top_k: expected 1")])
def test_a_request_that_sglang_cannot_receive_ends_alone_and_counts_once(guard, error, caplog):
    def failing(*_given, **_more):
        raise error

    scheduler = Queue()
    sent = receiving(guard, scheduler, failing)

    (req,) = scheduler.queue
    assert scheduler.limited == [req]
    assert (req.rid, req.http_worker_ipc) == (sent.rid, "ipc")
    assert (req.time_stats.created_time, req.tokenizer) == (7.0, scheduler.tokenizer)
    assert (req.origin_input_ids, req.origin_input_ids.typecode) == (array("q", [0]), "q")
    assert req.vocab_size == 100
    assert req.sampling_params.max_new_tokens == 1
    assert list(guard.audit.counts) == [(Gate.SCHEDULER, "invalid_request")]
    assert sum(guard.audit.counts.values()) == 1
    is_ours = isinstance(error, RequestError)
    said = str(error) if is_ours else "SGLang cannot receive this request: KeyError"
    assert said in req.to_finish.message
    assert req.to_finish.status_code == 400
    logged = [] if is_ours else ["sglang-lp: SGLang could not receive a request"]
    assert [one.getMessage() for one in caplog.records if one.exc_info] == logged


def test_positions_that_sglang_cannot_pool_end_their_request_before_sglang_reads_it(guard):
    scheduler, seen = Queue(), []
    receiving(guard, scheduler, seen.append, token_indices_to_pool=[0, 1], logprob_start_len=1)

    assert seen == []
    assert "token_indices_to_pool: expected logprob_start_len 0" in (
        scheduler.queue[0].to_finish.message
    )


def test_a_request_with_a_field_out_of_range_asks_for_nothing_and_is_named_in_the_audit_trail(
    guard, caplog
):
    from sglang.srt.sampling.sampling_params import SamplingParams

    rid = "0" * 32
    req = Req(rid=rid, sampling_params=SamplingParams(max_new_tokens=50))
    req.logprob = SimpleNamespace(top_logprobs_num=10**9, token_ids_logprob=[3])
    req.positional_embed_overrides, req.token_indices_to_pool = object(), [0, 1]
    with caplog.at_level(logging.WARNING, logger="sglang_lp.audit"):
        admit(guard, req)

    (line,) = map(json.loads, caplog.messages)
    assert (line["gate"], line["rid"]) == (Gate.SCHEDULER, rid)
    assert req.ended.status == 400
    assert req.sampling_params.max_new_tokens == 1
    assert (req.logprob.top_logprobs_num, req.logprob.token_ids_logprob) == (0, None)
    assert req.positional_embed_overrides is None
    assert req.token_indices_to_pool is None
    assert not hasattr(req, "multi_item_delimiter_indices")


# A request may come by another front end, or with fields that its own did not check.
@pytest.mark.parametrize(("vocab_size", "ends"), [(7, True), (8, False), (None, False)])
def test_a_token_of_another_vocabulary_ends_its_request(guard, vocab_size, ends):
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(max_new_tokens=50, stop_token_ids=[7])
    sampling.custom_params = None
    req = Req(sampling_params=sampling, vocab_size=vocab_size)
    req.logprob = SimpleNamespace(top_logprobs_num=0, token_ids_logprob=None)
    req.positional_embed_overrides = None
    admit(guard, req)

    assert (req.ended is not None) is ends
    if ends:
        assert req.ended.message.startswith("stop_token_ids: expected token ids of the served")


WHOLE = {"whole_answer": True}


def test_an_answer_that_has_to_be_complete_is_asked_for(guard):
    guard.server.grammar_backend = "xgrammar"
    plain = Req(None, None, sampling={"json_schema": "{}"})
    asking = Req(None, WHOLE, sampling={"json_schema": "{}"})
    banning = Req(PAYLOAD, {"token_ids": [7], **WHOLE}, sampling={"regex": "a"}, vocab_size=9)
    for req in (plain, asking, banning):
        admit(guard, req)

    assert ending_of(plain) is None
    assert (ending_of(asking).is_asked, ending_of(asking).banned) == (True, frozenset())
    assert ending_of(banning).banned == {7}


def test_from_str_stands_for_what_is_allowed_and_nothing_else(guard):
    from_str = SchedulerGate(guard, PendingResults(), Arrivals()).from_str

    with pytest.raises(InstallError) as caught:
        from_str(object, PAYLOAD)(None, [])
    assert str(caught.value) == ("sglang-lp: SGLang called a processor that the plugin runs itself")
    with pytest.raises(PayloadRefused):
        from_str(object, EVIL)


def test_from_str_never_makes_the_class_itself(allowing):
    guard = allowing(Unfinished)
    guard.verifier.resolve = lambda _payload: Unfinished

    assert (
        type(SchedulerGate(guard, PendingResults(), Arrivals()).from_str(object, "its payload"))
        is InertProcessor
    )


def test_where_sglang_keeps_dill_it_writes_and_never_reads():
    closed = NoLoads(dill)

    assert closed.dumps is dill.dumps
    for load in (closed.loads, closed.load, refuse_to_load):
        with pytest.raises(InstallError) as caught:
            load(b"N.", ignore=False)
        assert str(caught.value) == (
            "sglang-lp: nothing that a request sends is unpickled in this process"
        )
    assert vars(closed).keys() == {"dumps", "loads", "load"}


def test_a_processor_is_given_the_servers_tokenizer(guard):
    guard.server.tokenizer = object()
    req = Req(PAYLOAD, {"token_ids": [1]})

    SchedulerGate(guard, PendingResults(), Arrivals()).admit_req(None, req)

    (row,) = rows_of([req.sampling_params.custom_params])
    assert row.turns[0].request.tokenizer is guard.server.tokenizer
