"""Hooks in SGLang's sampler and in its verify step."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from sglang_lp._engine.history.attached import attach_row
from sglang_lp.builtins import (
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
)
from sglang_lp.links import Serving
from sglang_lp.server.scheduler import sampling
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps


def request(processor, **params):
    req = SimpleNamespace(origin_input_ids=[1], output_ids=[], to_finish=None)
    custom_params = {**params, "__req__": req}
    row = attach_row(custom_params, [Serving(processor, processor.parse_params(params))])
    return custom_params, row


def ban(*token_ids):
    return request(DisallowedTokensLogitsProcessor(), token_ids=list(token_ids))


def force(*token_ids):
    return request(ForcedSequenceLogitProcessor(), token_ids=list(token_ids))


def info(*custom_params, grammars=None, custom=True):
    return SimpleNamespace(
        custom_params=list(custom_params), grammars=grammars, has_custom_logit_processor=custom
    )


def apply():
    return Steps(PendingResults()).run


@pytest.fixture
def steps(monkeypatch):
    """Record what each step is given instead of running it."""
    given = []

    class Recorded:
        def step_asleep(self, logits, custom_params, width, *, has_grammar, newest):
            return False

        def step(self, logits, rows, custom_params, masked, *, temperatures):
            given.append((logits, list(rows), list(custom_params), list(masked)))

    monkeypatch.setattr(sampling, "Batch", Recorded)
    return given


def test_a_step_gets_the_rows_of_its_requests(steps):
    (a, row), logits = ban(0), torch.zeros(2, 3)
    apply()(logits, info(None, a))

    assert steps == [(logits, [None, row], [None, a], [])]


@pytest.mark.parametrize("drafted", [2, 3])
def test_drafted_rows_that_nobody_expects_end_their_requests(steps, drafted, caplog):
    (a, _), (b, _) = ban(0), ban(1)
    apply()(torch.zeros(2 * drafted, 3), info(a, b), drafted)

    assert not steps
    assert a["__req__"].to_finish.status_code == b["__req__"].to_finish.status_code == 500
    assert "a step that sglang-lp does not know" in caplog.text


def test_the_rows_that_a_grammar_masked_are_known(steps):
    given = info(*[None] * 4, grammars=[None, object(), None, object()])
    apply()(torch.zeros(4, 3), given)

    assert steps[0][3] == [1, 3]


def test_the_edits_of_all_steps_go_through_one_batch():
    (a, _), (b, _) = ban(0), force(2)
    edit = apply()
    for _ in range(2):
        logits = torch.zeros(3, 3)
        edit(logits, info(a, None, b))
        assert logits.isneginf().tolist() == [
            [True, False, False],
            [False, False, False],
            [True, True, False],
        ]


class Gone:
    """A dead weak reference to a request."""

    @property
    def __class__(self):
        raise ReferenceError("weakly-referenced object no longer exists")

    def __getattr__(self, _name):
        raise ReferenceError("weakly-referenced object no longer exists")

    def __setattr__(self, _name, _value):
        raise ReferenceError("weakly-referenced object no longer exists")


def test_a_step_that_fails_ends_its_requests_and_no_more(monkeypatch, caplog):
    def step(*_args, **_kwargs):
        raise MemoryError("no room")

    monkeypatch.setattr(sampling.Batch, "step", step)
    (a, _), (b, _) = ban(0), ban(1)
    with caplog.at_level(logging.ERROR, logger="sglang_lp.server.scheduler.sampling"):
        apply()(torch.zeros(5, 3), info(a, None, {"mine": 1}, b, {"__req__": Gone()}))

    for custom_params in (a, b):
        reason = custom_params["__req__"].to_finish
        assert reason.message.startswith("internal error of sglang-lp")
        assert reason.status_code == 500
    assert caplog.messages == ["sglang-lp: a step failed; its requests end, the server goes on"]
    assert "no room" in caplog.text


@pytest.mark.parametrize("broken", ["rows_of", "writing", "perf_counter", "_spread"])
def test_whatever_fails_in_a_step_its_requests_end(monkeypatch, broken):
    def fails(*_args, **_kwargs):
        raise RuntimeError(broken)

    monkeypatch.setattr(sampling, broken, fails)
    a, _ = ban(0)
    apply()(torch.zeros(1, 3), info(a))

    assert a["__req__"].to_finish.status_code == 500


class Unendable:
    """A request that cannot even be told how it ends."""

    def __setattr__(self, name, value):
        raise RuntimeError("nothing can be set")


def test_a_request_that_cannot_be_ended_ends_the_scheduler(monkeypatch):
    monkeypatch.setattr(sampling, "rows_of", lambda _params: 1 / 0)

    with pytest.raises(RuntimeError, match="nothing can be set"):
        apply()(torch.zeros(1, 3), info({"__req__": Unendable()}))


def test_a_request_that_is_gone_keeps_no_other_from_being_served():
    (a, row), (b, _) = ban(0), ban(1)
    row.host.request = row.source = a["__req__"] = Gone()
    logits = torch.zeros(2, 3)

    apply()(logits, info(a, b))

    assert logits[1].tolist() == [0, -torch.inf, 0]
