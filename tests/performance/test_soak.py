"""The soak covers every kind of request, and notices wrong answers."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from benchmarks.soak import run as soak
from benchmarks.soak.requests import KINDS, Ask, Sent, good
from sglang_lp import builtins
from support.models import tiny_model
from support.models.tiny_model import FREQUENT, VOCAB_SIZE
from support.plugins.steps import Steps

BAN = builtins.DisallowedTokensLogitsProcessor


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    return soak.Checks(tiny_model.make(tmp_path_factory.mktemp("model")))


def answered(checks, ask, count):
    """Return the tokens that the model generates, step by step."""
    output = []
    for _ in range(count):
        row = checks._oracle.logits(ask.prompt, [*output, 0])[-1]
        row[ask.params["token_ids"]] = float("-inf")
        output.append(int(row.argmax()))
    return output


def test_every_builtin_is_asked_for():
    missing = [
        name for name in builtins.__all__ if not issubclass(getattr(builtins, name), tuple(KINDS))
    ]
    assert not missing


@pytest.mark.parametrize("processor", KINDS, ids=lambda processor: processor.__name__)
def test_what_is_asked_for_is_allowed(processor):
    for seed in range(50):
        processor.parse_params(KINDS[processor](random.Random(seed)), VOCAB_SIZE)


def test_without_processors_the_load_is_the_same():
    sent = [good(random.Random(seed)) for seed in range(50)]
    bodies = [(one.body(), one.without_processors().body()) for one in sent]

    assert any("Logit" in str(with_) for with_, _ in bodies)
    assert not any("Logit" in str(without) for _, without in bodies)
    assert all(with_.keys() == without.keys() for with_, without in bodies)


def test_a_wrong_token_and_a_missing_one_are_noticed(checks):
    ask = Ask([5, 6, 7], BAN, {"token_ids": [*FREQUENT[:2]]})
    sent = Sent("good", "/generate", [Ask([9]), ask], copies=2, tokens=5)
    tokens = answered(checks, ask, 5)
    other = answered(checks, Ask([5, 6, 7], BAN, {"token_ids": [tokens[3]]}), 4)[3]

    assert checks.wrong(soak.Answer(sent, 3, tokens)) is None
    for wrong in ([*tokens[:3], other, tokens[4]], [*tokens[:4], FREQUENT[0]], tokens[:4]):
        assert checks.wrong(soak.Answer(sent, 2, wrong)) is not None
    banned = soak.Answer(Sent(**{**vars(sent), "is_sampled": True}), 2, [*tokens[:4], FREQUENT[0]])
    assert checks.wrong(banned) is not None


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ({}, 0),
        ({"unexpected": ["no answer"]}, 1),
        ({"longest": 0.12}, 1),
        ({"logged": "... sglang-lp: a step failed; ..."}, 1),
        ({"healthy": False}, 1),
    ],
)
def test_whatever_is_wrong_is_a_problem(what, count):
    healthy, logged = what.get("healthy", True), what.get("logged", "fine")
    server = SimpleNamespace(log_text=lambda: logged, is_healthy=lambda: healthy)
    seen = soak.Seen(unexpected=what.get("unexpected", []))
    without = Steps([9.0, 0.01], [0.01, 0.01], 0)
    with_ = Steps([9.9, 0.02], [0.01, what.get("longest", 0.1)], 0)

    assert len(soak.problems(server, seen, with_, without)) == count
