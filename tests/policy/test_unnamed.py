"""Answers and errors never name a processor of ``[[always]]`` to a client."""

import logging

import pytest
import torch

from sglang_lp._engine.history.attached import attach_row
from sglang_lp._engine.history.foreseen import foreseen
from sglang_lp.errors import RequestError, Unsupported
from sglang_lp.faults import as_fault
from sglang_lp.policy.sections import Chosen
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.gate.algorithms import Speculation
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.server.gate.metrics import NAMES
from sglang_lp.testing import Batch, FakeRequest
from sglang_lp.trust import Policy

OWN = {None: None, "LoopBreakerLogitProcessor": {}, "chain": None}
STAGES = (
    "limit_params",
    "init",
    "serving",
    "plain",
    "start",
    "advance",
    "edit",
    "rewind",
    "foresee",
    "fork",
    "report",
)


class CanaryLogitProcessor(LogitProcessor):
    """Fails where it is told to."""

    fails = None

    def __init__(self):
        super().__init__()
        self._reach("init")

    @classmethod
    def _reach(cls, stage):
        if cls.fails is not None and cls.fails[0] == stage:
            raise cls.fails[1]("the CanaryLogitProcessor fails")

    @classmethod
    def limit_params(cls, params, limit):
        cls._reach("limit_params")
        return params

    def serving(self, params):
        self._reach("serving")
        return self

    def plain(self, params):
        self._reach("plain")
        return {}

    def start(self, request):
        self._reach("start")
        return []

    def advance(self, request, token_ids):
        self._reach("advance")

    def rewind(self, request):
        self._reach("rewind")

    def foresee(self, request):
        self._reach("foresee")
        return ()

    def fork(self, request):
        self._reach("fork")
        return []

    def edit(self, request, edits):
        self._reach("edit")
        if self.fails == ("conflict", None):
            edits.force(3)
            edits.ban([3])

    def report(self, params, prompt_ids, output_ids, forced):
        self._reach("report")
        return {}


def request_of(own):
    if own == "chain":
        return "ChainLogitProcessor", {"chain": ["LoopBreakerLogitProcessor"]}
    return own, OWN[own]


def guard_of_it():
    policy = Policy(
        allow=(f"{__name__}:CanaryLogitProcessor",),
        always=(Chosen(processor=f"{__name__}:CanaryLogitProcessor"),),
    )
    guard = Guard(policy)
    guard.server.vocab_size = 16
    guard.rules.fit(guard.server.model)
    return guard


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize(
    "fails",
    [
        None,
        ("conflict", None),
        *((stage, kind) for stage in STAGES for kind in (ValueError, RequestError, SystemExit)),
    ],
    ids=str,
)
def test_nothing_that_a_client_sees_names_it(own, fails, monkeypatch, caplog):
    # A class that reads SGLang's request gets its parameters as plain values.
    monkeypatch.setattr(
        CanaryLogitProcessor, "reads_request", fails is not None and "plain" in fails
    )
    guard = guard_of_it()
    monkeypatch.setattr(CanaryLogitProcessor, "fails", fails)
    request = FakeRequest([1, 2])
    seen = []
    try:
        admitted = guard.admit(Intake(*request_of(own), limit=9))
        seen += admitted.names
        custom_params = request.custom_params({})
        row = attach_row(custom_params, admitted.servings)
        for token_id in (4, 5):
            logits = torch.zeros(1, 16)
            Batch().step(logits, [row], [custom_params])
            request.append(token_id)
        try:
            row.rewind()
            assert foreseen(row, 4, 16) == []
            row.fork_states()
        except BaseException as error:  # noqa: BLE001 - of any kind
            raise row.fault(error) from None
        for turn in row.turns:
            seen += turn.report([1, 2], [4, 5], []) if turn.is_named else ()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a client may see it
        fault = as_fault("ChainLogitProcessor", "then", error)
        seen += [str(error), str(fault), getattr(fault, "processor", None)]
    seen.append(str(getattr(request, "to_finish", "")))

    assert "Canary" not in str(seen)
    if fails is not None and fails[0] not in {"conflict", "report"}:
        told = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert "Canary" in caplog.text, told


@pytest.mark.parametrize("own", OWN)
def test_a_server_that_drafts_and_cannot_run_it_refuses_every_request_without_its_name(
    own, monkeypatch
):
    monkeypatch.setattr(CanaryLogitProcessor, "reads_request", True)
    guard = guard_of_it()
    guard.server.speculation = Speculation("EAGLE")
    with pytest.raises(Unsupported, match="speculative") as refusal:
        guard.admit(Intake(*request_of(own)))
    assert "Canary" not in str(refusal.value)


def test_no_label_of_a_metric_names_it():
    guard = guard_of_it()

    assert guard.admit(Intake(None, None)).names == ()
    assert guard.admit(Intake("LoopBreakerLogitProcessor", {})).names == (
        "LoopBreakerLogitProcessor",
    )
    assert not [name for name in NAMES if "canary" in name.lower()]
