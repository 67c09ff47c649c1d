"""A failure is logged, told and counted for the class that raised, whichever other classes run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from prometheus_client import REGISTRY

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp._engine.history.attached import rows_of
from sglang_lp._engine.history.drafts import Drafts
from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.faults import UNNAMED
from sglang_lp.params.parsed import forget
from sglang_lp.policy.sections import Chosen, Profile
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.served_model import ReasoningFormat
from sglang_lp.server.gate import metrics
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler import known_drafts, sampling
from sglang_lp.server.scheduler.gate import SchedulerGate
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.reasons import error_of
from sglang_lp.server.scheduler.release import finish
from sglang_lp.trust import Policy
from support.fakes.requests import Req
from support.models.vocabularies import one_token_a_byte

VOCAB = 300
SAID = "a secret of the class"


class Faulty(LogitProcessor):
    """Fails in one stage of its work."""

    class Params(PhasedParams, frozen=True, kw_only=True):
        """It may hold in a phase."""

    stage = None

    @classmethod
    def reach(cls, stage):
        if Faulty.stage == stage:
            raise KeyError(SAID)

    def __init__(self):
        self.reach("constructor")

    @classmethod
    def parse_params(cls, custom_params, vocab_size=None):
        cls.reach("parse_params")
        return super().parse_params(custom_params, vocab_size)

    @classmethod
    def fit_params(cls, params, served):
        cls.reach("fit_params")
        return params

    @classmethod
    def limit_params(cls, params, limit):
        cls.reach("limit_params")
        return params

    def serving(self, params):
        self.reach("serving")
        return self

    @property
    def needs(self):
        self.reach("a flag")
        return History.TOKENS

    def start(self, request):
        self.reach("start")
        return []

    def advance(self, request, token_ids):
        self.reach("advance")

    def fork(self, request):
        self.reach("fork")
        return []

    def foresee(self, request):
        self.reach("foresee")
        return ()

    def rewind(self, request):
        self.reach("rewind")

    def edit(self, request, edits):
        self.reach("edit")
        if Faulty.stage == "wrong edits":
            edits.ban([VOCAB])

    def report(self, params, prompt_ids, output_ids, forced):
        self.reach("report")
        return {"mine": object()} if Faulty.stage == "a report that is no JSON" else {}


class FaultyRows(LogitProcessor):
    """Fails where it computes whole rows."""

    def plain(self, params):
        Faulty.reach("plain")
        return {}

    def __call__(self, logits, custom_param_list=None):
        Faulty.reach("compute")
        if Faulty.stage == "a wrong shape":
            return logits[:, :5]
        return torch.full_like(logits, -torch.inf) if Faulty.stage == "no token left" else logits


class Asking(NamedTuple):
    """A request and the operator's decisions on it."""

    payload: str | None
    params: dict
    policy: Mapping[str, Any] = MappingProxyType({})
    is_named: bool = True


BAN = "DisallowedTokensLogitsProcessor"
THINK = {"thinking_start_token_id": 256, "thinking_end_token_id": 257, "thinking_budget": 5}
BUDGET = Chosen(processor="ThinkingBudgetLogitProcessor", params=THINK)
ALWAYS = Chosen(processor=BAN, params={"token_ids": [7]})
DECISIONS = {"defaults": BUDGET, "always": (ALWAYS,)}


def asked(name):
    """Return the ways to run a class: alone, and with innocent classes."""
    chosen = Chosen(processor=name)
    chain = {"chain": [BAN, name], "0.token_ids": [9]}
    reverse = {"chain": [name, BAN], "1.token_ids": [8]}
    return {
        "alone": Asking(name, {}),
        "beside [defaults]": Asking(name, {}, {"defaults": BUDGET}),
        "beside [[always]]": Asking(name, {}, {"always": (ALWAYS,)}),
        "beside both": Asking(name, {}, DECISIONS),
        "last of a chain": Asking("ChainLogitProcessor", chain),
        "first of a chain": Asking("ChainLogitProcessor", reverse),
        "in a chain beside both": Asking("ChainLogitProcessor", chain, DECISIONS),
        "the default": Asking(None, {}, {"defaults": chosen}),
        "the default beside [[always]]": Asking(
            None, {}, {"defaults": chosen, "always": (ALWAYS,)}
        ),
        "of a profile": Asking(
            "calm", {}, {"profiles": {"calm": Profile(processors=(BUDGET, chosen))}}
        ),
        "the only [[always]]": Asking(None, {}, {"always": (chosen,)}, is_named=False),
        "one of [[always]]": Asking(
            BAN, {"token_ids": [9]}, {"always": (ALWAYS, chosen)}, is_named=False
        ),
    }


PHASED = {
    "in a phase": Asking(f"{__name__}:Faulty", {"where": "answer"}),
    "in a phase beside both": Asking(f"{__name__}:Faulty", {"where": "answer"}, DECISIONS),
}
STAGES = (
    *("parse_params", "fit_params", "limit_params", "constructor", "serving"),
    *("a flag", "start", "advance", "fork", "foresee", "rewind", "edit", "wrong edits"),
    *("report", "a report that is no JSON"),
)
OF_ROWS = ("plain", "compute", "a wrong shape", "no token left")
#: A phase passes neither on, and reads no flag of its processor later.
NOT_IN_A_PHASE = {"rewind", "report", "a report that is no JSON"}
#: The operator's processors are parsed at start-up, and report nothing.
AT_START_UP = {"parse_params", "fit_params", "report", "a report that is no JSON"}
CASES = [
    *(
        ("Faulty", stage, way)
        for stage, (way, asking) in product(STAGES, asked(f"{__name__}:Faulty").items())
        if asking.is_named or stage not in AT_START_UP
    ),
    *(
        ("Faulty", stage, way)
        for stage, way in product(STAGES, PHASED)
        if stage not in NOT_IN_A_PHASE
    ),
    *(
        ("FaultyRows", stage, way)
        for stage, way in product(OF_ROWS, asked(f"{__name__}:FaultyRows"))
        if (stage, way) != ("plain", "alone")
    ),  # alone it reads the parameters as they came
]


@pytest.fixture(scope="module")
def counting():
    """Write metrics, as a server does."""
    known = {*REGISTRY._collector_to_names}
    yield metrics.Metrics("fingerprint", (), ())
    for collector in {*REGISTRY._collector_to_names} - known:
        REGISTRY.unregister(collector)


def counted():
    """Return the faults of each class so far."""
    return {
        (sample.labels["processor"], sample.labels["kind"]): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "sglang_lp_faults_total"
    }


def end(req, _count):
    """End a request as SGLang does."""
    req.finished_reason = req.to_finish or (req.finished_reason if len(req.output_ids) < 4 else 1)
    if req.finished_reason == 1:
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH

        req.finished_reason = FINISH_LENGTH(4)


def run(guard, req):
    """Run a request from the scheduler's gate to its end, and return the message of its error."""
    SchedulerGate(guard, PendingResults(), Arrivals()).admit_req(None, req)
    if req.ended is not None:
        return req.ended.message
    params = req.sampling_params.custom_params
    (row,) = rows_of([params])
    steps = Batch()
    for token_id in (4, 5, 6, 7):
        at = len(req.output_ids)
        req.kv.kv_committed_len = len(req.origin_input_ids) + at
        if Faulty.stage == "fork":
            drafts = Drafts(2, [[token_id, 9]], [[1, -1]], [[-1, -1]])
            steps.step(torch.zeros(2, VOCAB), [row], [params], drafts=lambda d=drafts: d, width=2)
        else:
            steps.step(torch.zeros(1, VOCAB), [row], [params])
        if Faulty.stage == "foresee":
            known_drafts._ask(row, 1, VOCAB)
        if Faulty.stage == "rewind" and at == 2:
            sampling.rewind(None, req)
        accepted = [9, token_id] if Faulty.stage == "fork" else [token_id]
        req.output_ids.extend(accepted)
        finish(end, req, len(accepted))
        if error_of(req.finished_reason) is not None:
            return req.finished_reason.message
    return None


@cache
def asking_of(kind, way):
    """Return a way to run a class, and a guard with its policy."""
    asking = PHASED.get(way) or asked(f"{__name__}:{kind}")[way]
    guard = Guard(Policy(allow=(f"{__name__}:{kind}",), **asking.policy))
    guard.server.tokenizer = one_token_a_byte("<think>", "</think>")
    guard.server.vocab_size = VOCAB
    guard.server.reasoning = ReasoningFormat("<think>", "</think>")
    guard.rules.fit(guard.server.model)
    return asking, guard


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case).replace(" ", "-"))
def test_a_failure_is_named_logged_and_counted_for_the_class_that_raised_alone(
    case, counting, monkeypatch, caplog
):
    kind, stage, way = case
    asking, guard = asking_of(kind, way)
    forget()
    guard._model = None  # or it remembers what it decided for an equal request
    monkeypatch.setattr(metrics, "_writing", counting)
    monkeypatch.setattr(Faulty, "stage", stage)
    before = counted()
    req = Req(asking.payload, asking.params, rid="0" * 32, finished_len=None)
    req.sampling_params.max_new_tokens = 9
    with caplog.at_level(logging.WARNING, logger="sglang_lp"):
        message = run(guard, req)

    after = counted()
    grown = {labels: after[labels] - before.get(labels, 0) for labels in after}
    label = kind if asking.is_named else "always"
    assert {labels: count for labels, count in grown.items() if count} == {
        (label, "processor"): 1.0
    }
    assert message.startswith(f"{kind if asking.is_named else UNNAMED} failed ")
    assert (SAID in message) <= asking.is_named
    said = [line.partition("\n")[0] for line in caplog.messages]
    assert any(
        line.startswith((f"{kind} failed", f"request {req.rid} ended: {kind}")) for line in said
    )
    innocent = ("ChainLogitProcessor", "ThinkingBudget", BAN, "InPhase")
    assert not [line for line in said if line.removesuffix(SAID).startswith(innocent)]
    assert not [name for name in innocent if name in message]
