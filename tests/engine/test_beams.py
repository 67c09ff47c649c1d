"""Beam search with processors, against a beam search in plain Python and float64."""

from __future__ import annotations

import random

import pytest

from sglang_lp.client import attach
from support.models.tiny_model import EOS
from support.oracles.beams import float64, search
from support.oracles.greedy import free, rule
from support.servers.asking import body
from support.servers.configurations import on_servers

NO_OVERLAP = "no overlap, no radix cache"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    on_servers("default", NO_OVERLAP),
]

A, B, C = 870, 386, 10
FEW = [A, B, C, 300, 301]

#: Processors that need no token of the history.
BLIND = {
    "ban": attach("DisallowedTokensLogitsProcessor", token_ids=FEW),
    "allow": attach("AllowedTokensLogitProcessor", token_ids=[*FEW, *range(400, 500)]),
    "allow two": attach("AllowedTokensLogitProcessor", token_ids=[A, B]),
    "min length": attach("MinLengthLogitProcessor", min_tokens=4, eos_token_ids=[A, EOS]),
    "scheduled ban": attach("ScheduledBiasLogitProcessor", token_ids=[A, B], start=2, end=5),
    "scheduled bias": attach(
        "ScheduledBiasLogitProcessor", token_ids=FEW, bias=0, final_bias=6, start=1, end=6
    ),
    "forced": attach("ForcedSequenceLogitProcessor", token_ids=[300, 301, 302]),
    "chain": attach(
        [
            attach("MinLengthLogitProcessor", min_tokens=3, eos_token_ids=[A]),
            attach("DisallowedTokensLogitsProcessor", token_ids=[B]),
        ]
    ),
}
#: Processors that follow the tokens of each beam.
FOLLOWING = {
    "bad words": attach("BadWordsLogitProcessor", token_ids=[A, B, C, C, B], lengths=[1, 2, 2]),
    "n-grams": attach("DeepseekOCRNoRepeatNGramLogitProcessor", ngram_size=1, window_size=20),
    "choice": attach(
        "ChoiceLogitProcessor", token_ids=[A, B, A, C, C], lengths=[2, 3], eos_token_ids=[EOS]
    ),
    "catalogue": attach(
        "CatalogueLogitProcessor",
        catalogue="items",
        exclude=[f"item {number}" for number in range(0, 400, 3)],
        max_items=2,
        ends_answer=False,
    ),
    "dry": attach("DRYLogitProcessor", dry_multiplier=3, dry_allowed_length=1),
    "following chain": attach(
        [
            attach("BadWordsLogitProcessor", token_ids=[A, A, B], lengths=[1, 2]),
            attach("DRYLogitProcessor", dry_multiplier=3, dry_allowed_length=1),
        ]
    ),
}


@pytest.fixture(scope="session")
def model(tiny):
    return float64(tiny)


def asking(prompt, attachment, **sampling):
    """Return the body of a request, with ``beam_width`` of a beam search."""
    made = body(prompt, **{"max_new_tokens": 8, "ignore_eos": True, **sampling})
    return made if attachment is None else attachment.generate_body(made)


def ruled(attachment):
    """Return the rule of a processor for logprobs."""
    if attachment is None:
        return free
    return rule(attachment.processor, attachment.custom_params, forced=0.0)


def beams(reply):
    assert reply.status == 200, reply.body
    return [
        (one["output_ids"], one["meta_info"]["sequence_score"])
        for one in reply.body["meta_info"]["beam_results"]
    ]


def check(found, expected):
    assert [tokens for tokens, _ in found] == [beam.tokens for beam in expected]
    for (_, score), beam in zip(found, expected, strict=True):
        assert score == pytest.approx(beam.score, abs=1e-4)


@pytest.mark.parametrize("width", [2, 5, 16, 64])
def test_beams_are_those_of_a_search_in_float64(server, model, width):
    chosen = random.Random(width)
    requests, wanted = [], []
    for attachment in [*BLIND.values(), *FOLLOWING.values(), None]:
        prompt = [chosen.randrange(2, 1024) for _ in range(chosen.randrange(1, 30))]
        stops = [] if chosen.random() < 0.5 else [B, EOS]
        count = chosen.randrange(1, width + 1)
        more = {"ignore_eos": not stops, "stop_token_ids": stops} if stops else {}
        sampling = {"beam_width": width, "n": count, **more}
        requests.append(asking(prompt, attachment, **sampling))
        found = search(model, prompt, ruled(attachment), width=width, length=8, stops=stops)
        wanted.append(found[:count])
        requests.append(asking(prompt, attachment))
        wanted.append(None)
    alone = [
        None if expected else server.post("/generate", request).output_ids
        for request, expected in zip(requests, wanted, strict=True)
    ]
    for request, reply, expected, before in zip(
        requests, server.at_once(requests), wanted, alone, strict=True
    ):
        if expected is None:
            assert reply.output_ids == before
        else:
            print(request["sampling_params"])
            check(beams(reply), expected)
