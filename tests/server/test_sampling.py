"""What stands in SGLang's sampler, and when sampling is delayed."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace

import pytest
import torch

from sglang_lp._engine.rows import attach_row
from sglang_lp.builtins import (
    DisallowedTokensLogitsProcessor,
    DRYLogitProcessor,
    ForcedSequenceLogitProcessor,
)
from sglang_lp.server import sampling
from sglang_lp.server.sampling import make_apply, make_delay

VARIABLE = "SGLANG_ENABLE_DELAY_SAMPLE"


def request(processor, **params):
    req = SimpleNamespace(origin_input_ids=[1], output_ids=[], to_finish=None)
    custom_params = {**params, "__req__": req}
    row = attach_row(custom_params, processor, processor.parse_params(params))
    return custom_params, row


def ban(*token_ids):
    return request(DisallowedTokensLogitsProcessor(), token_ids=list(token_ids))


def force(*token_ids):
    return request(ForcedSequenceLogitProcessor(), token_ids=list(token_ids))


def dry():
    return request(DRYLogitProcessor())


def info(*custom_params, grammars=None, custom=True):
    return SimpleNamespace(
        custom_params=list(custom_params), grammars=grammars, has_custom_logit_processor=custom
    )


@pytest.fixture
def steps(monkeypatch):
    """Record what each step is given instead of running it."""
    given = []

    class Recorded:
        def step(self, logits, rows, custom_params, masked, *, repeated):
            given.append((logits, list(rows), list(custom_params), list(masked), repeated))

    monkeypatch.setattr(sampling, "Batch", Recorded)
    return given


def test_a_step_gets_the_rows_of_its_requests(steps):
    (a, row), logits = ban(0), torch.zeros(2, 3)
    make_apply()(logits, info(None, a))

    assert steps == [(logits, [None, row], [None, a], [], False)]


@pytest.mark.parametrize("drafted", [2, 3])
def test_each_drafted_token_has_the_row_of_its_request(steps, drafted):
    (a, one), (b, two), logits = ban(0), ban(1), torch.zeros(2 * drafted, 3)
    make_apply()(logits, info(a, b), drafted)

    rows, params = [one] * drafted + [two] * drafted, [a] * drafted + [b] * drafted
    assert steps == [(logits, rows, params, [], True)]


@pytest.mark.parametrize(("drafted", "masked"), [(1, [1, 3]), (2, [2, 3, 6, 7])])
def test_the_rows_that_a_grammar_masked_are_known(steps, drafted, masked):
    given = info(*[None] * 4, grammars=[None, object(), None, object()])
    make_apply()(torch.zeros(4 * drafted, 3), given, drafted)

    assert steps[0][3] == masked


def test_the_edits_of_all_steps_go_through_one_batch():
    (a, _), (b, _) = ban(0), force(2)
    apply = make_apply()
    for _ in range(2):
        logits = torch.zeros(3, 3)
        apply(logits, info(a, None, b))
        assert logits.isneginf().tolist() == [
            [True, False, False],
            [False, False, False],
            [True, True, False],
        ]


def test_a_step_that_fails_ends_its_requests_and_no_more(monkeypatch, caplog):
    def step(*_args, **_kwargs):
        raise MemoryError("no room")

    monkeypatch.setattr(sampling.Batch, "step", step)
    (a, _), (b, _) = ban(0), ban(1)
    # A request that cannot be ended, as it has nothing to end it with, keeps no other from it.
    c, row = ban(2)
    row.source = row.host.request = c["__req__"] = SimpleNamespace()
    with caplog.at_level(logging.ERROR, logger="sglang_lp.server.sampling"):
        make_apply()(torch.zeros(4, 3), info(a, None, c, b))

    for custom_params in (a, b):
        reason = custom_params["__req__"].to_finish
        assert reason.message == "internal error of sglang-lp in this step"
        assert reason.status_code == 500
    assert caplog.messages == [
        "sglang-lp: a step failed; its requests end, the server goes on",
        "sglang-lp: a request could not be ended",
    ]
    assert "no room" in caplog.text


class Gone:
    """What is left of a request that nobody holds any more."""

    @property
    def __class__(self):
        raise ReferenceError("weakly-referenced object no longer exists")

    def __getattr__(self, _name):
        raise ReferenceError("weakly-referenced object no longer exists")


def test_a_request_that_is_gone_keeps_no_other_from_being_served():
    (a, row), (b, _) = ban(0), ban(1)
    row.source = a["__req__"] = Gone()
    logits = torch.zeros(2, 3)

    make_apply()(logits, info(a, b))

    assert logits[1].tolist() == [0, -torch.inf, 0]


# Delay


def forward(worker, batch, *args, **kwargs):
    """Stand in for SGLang's step: say what it was given, and whether its sampling is delayed."""
    return worker, batch, args, kwargs, os.environ.get(VARIABLE)


@pytest.mark.parametrize(
    ("batch", "delayed"),
    [
        (None, False),
        (SimpleNamespace(), False),
        (SimpleNamespace(sampling_info=None), False),
        (SimpleNamespace(sampling_info=info(dry()[0], custom=False)), False),
        (SimpleNamespace(sampling_info=info(None)), False),
        (SimpleNamespace(sampling_info=info(None, ban(1)[0], force(1)[0])), False),
        (SimpleNamespace(sampling_info=info(None, ban(1)[0], dry()[0])), True),
    ],
)
def test_sampling_is_delayed_where_a_processor_needs_the_newest_token(monkeypatch, batch, delayed):
    monkeypatch.delenv(VARIABLE, raising=False)
    delay = make_delay()
    for result in (
        delay(forward, "worker", batch, 1, more=2),
        delay(forward, "worker", batch=batch, more=2),
    ):
        assert result[:2] == ("worker", batch)
        assert result[3] == {"more": 2}
        assert (result[4] in {"1", "true", "True"}) is delayed
    assert VARIABLE not in os.environ


def test_a_step_without_a_batch_is_sglangs():
    assert make_delay()(lambda worker: worker, "worker") == "worker"
