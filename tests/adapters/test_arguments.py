"""Arguments of constructors: bounded, filled in by the server, and tried in bounded time."""

import time

import pytest
from transformers.generation import logits_process

from sglang_lp.adapters import adapt, trial
from sglang_lp.errors import InvalidParameter, PolicyError
from sglang_lp.policy.adapt import Adapt
from sglang_lp.served_model import ServedModel
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.trust import Policy

SERVED = ServedModel(None, 1024, (1,))


def fitted(cls, served=SERVED, **params):
    return cls.fit_params(cls.parse_params(params, served.vocab_size), served).values


class Sized:
    def __init__(self, size=1, ratio=1.0, sizes=()):
        self.size = size

    def __call__(self, input_ids, scores):
        return scores


@pytest.mark.parametrize(
    ("name", "params", "why"),
    [
        (
            "SynthIDTextWatermarkLogitsProcessor",
            {
                "ngram_len": 3,
                "keys": [1, 2],
                "sampling_table_seed": 0,
                "context_history_size": 32,
                "sampling_table_size": 200_000_000,
            },
            "^sampling_table_size of .*: expected numbers from -1048576 to 1048576",
        ),
        ("WatermarkLogitsProcessor", {"vocab_size": 200_000_000}, "^vocab_size of "),
        ("WatermarkLogitsProcessor", {"vocab_size": 1023}, "expected 1024, the served model's"),
    ],
)
def test_sizes_that_would_take_the_server_are_refused_at_once(name, params, why):
    began = time.thread_time()
    with pytest.raises(InvalidParameter, match=why):
        fitted(adapt(getattr(logits_process, name)), **params)
    assert time.thread_time() - began < 0.1


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        ({"size": 1 << 20}, True),
        ({"size": -(1 << 20)}, True),
        ({"size": (1 << 20) + 1}, False),
        ({"size": -(1 << 20) - 1}, False),
        ({"sizes": [1, 1 << 21]}, False),
        ({"sizes": {"a": 1 << 21}}, False),
        ({"ratio": -1e6}, True),
        ({"ratio": -1e9}, False),
        ({"size": True}, True),
        ({"size": 2e8}, False),
        ({"size": "200000000"}, False),
        ({"size": " 2E8 "}, False),
        ({"size": "200_000_000"}, False),
        ({"size": "0xBEBC200"}, False),
        ({"size": "٢٠٠٠٠٠٠٠٠"}, False),
        ({"size": "9" * 5000}, False),
        ({"size": "1048576"}, True),
        ({"size": "infinity"}, True),
        ({"size": "call 0049 30 123456"}, True),
        ({"sizes": [1, "2e8"]}, False),
        ({"sizes": {"a": "2e8"}}, False),
        ({"sizes": {"200000000": 1}}, False),
    ],
)
def test_numbers_are_bounded_wherever_and_however_they_are_written(given, passes):
    cls = adapt(Sized, "transformers")
    if passes:
        assert fitted(cls, **given) == given
    else:
        with pytest.raises(InvalidParameter, match=r"\[\[adapt\]\] limits"):
            fitted(cls, **given)


class Banned:
    def __init__(self, bad_words_ids=(), token_bias=0.0):
        pass

    def __call__(self, input_ids, scores):
        return scores


@pytest.mark.parametrize(
    "most", [1024, "1024", 1024.0, "1024.0", -1, "-1", -1.0, "1e400"], ids=repr
)
def test_token_ids_are_the_models_however_they_are_written(most):
    cls = adapt(Banned, "transformers")
    for given in (most, [5, most], {"a": most}, *([{most: 1.0}] if isinstance(most, str) else [])):
        with pytest.raises(InvalidParameter, match="expected token ids of the served model, 0 to"):
            cls.parse_params({"bad_words_ids": given}, 1024)
    for given in ([1023, "1023", 1023.0], "a token 5000", {"</s>": 1}):
        cls.parse_params({"bad_words_ids": given, "token_bias": -0.5}, 1024)


def test_the_operator_bounds_a_parameter_by_name():
    cls = adapt(Sized, "transformers", limits={"size": 1 << 30, "ratio": 2})

    assert fitted(cls, size=1 << 30) == {"size": 1 << 30}
    assert fitted(cls, ratio="2") == {"ratio": "2"}
    for given in ({"size": (1 << 30) + 1}, {"ratio": 2.5}, {"ratio": "2.5"}, {"sizes": [1 << 21]}):
        with pytest.raises(InvalidParameter):
            fitted(cls, **given)
    with pytest.raises(PolicyError, match="limits: it takes no 'sise'; correct it"):
        adapt(Sized, "transformers", limits={"sise": 1})


def test_the_server_fills_in_what_the_request_leaves_out():
    watermark = adapt(logits_process.WatermarkLogitsProcessor)
    least = adapt(logits_process.MinNewTokensLengthLogitsProcessor)

    assert fitted(watermark) == {"vocab_size": 1024}
    assert fitted(watermark, vocab_size=1024) == {"vocab_size": 1024}
    assert fitted(least, min_new_tokens=3) == {"min_new_tokens": 3, "eos_token_id": 1}
    several = SERVED._replace(eos_token_ids=(1, 2))
    assert fitted(least, several, min_new_tokens=3)["eos_token_id"] == [1, 2]
    assert fitted(least, min_new_tokens=3, eos_token_id=5)["eos_token_id"] == 5
    with pytest.raises(InvalidParameter, match=r"^eos_token_id of .*: required, but not given"):
        fitted(least, SERVED._replace(eos_token_ids=()), min_new_tokens=3)


class Slow:
    made = 0

    def __init__(self, sleep=0.0, work=0.0):
        Slow.made += 1
        time.sleep(sleep)
        until = time.thread_time() + work
        while time.thread_time() < until:
            pass

    def __call__(self, input_ids, scores):
        return scores


def test_a_constructor_that_takes_long_is_refused_and_not_waited_for(monkeypatch):
    cls = adapt(Slow, "transformers")
    monkeypatch.setattr(trial, "PATIENCE", 60.0)
    assert fitted(cls, sleep=0.3) == {"sleep": 0.3}
    with pytest.raises(InvalidParameter, match=r"takes at most 0.25 s, got 0.\d+ s; ask for less"):
        fitted(cls, work=0.3)

    monkeypatch.setattr(trial, "PATIENCE", 0.05)
    with pytest.raises(InvalidParameter, match=r"at most 0.25 s, got more than 0.05 s"):
        fitted(cls, sleep=2.0)
    with pytest.raises(InvalidParameter, match="is at work for an earlier request"):
        fitted(cls)
    trial._abandoned[cls.title].join()
    monkeypatch.setattr(trial, "PATIENCE", 60.0)
    assert fitted(cls) == {}


def test_one_object_is_made_for_all_copies():
    guard = Guard(Policy(adapt=(Adapt(name=f"{__name__}:Slow", interface="transformers"),)))
    Slow.made = 0
    for _ in range(200):
        guard.admit(Intake(f"{__name__}:Slow", {"work": 0.0}))

    assert Slow.made == 1
