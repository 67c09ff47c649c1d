"""Beam search with processors, against a beam search in plain Python and float64."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM

from sglang_lp.client import attach
from support.catalogues import served_items
from support.models.tiny_model import EOS
from support.oracles.beams import float64, search
from support.oracles.greedy import free, rule
from support.processors.recording import DenseRaises, Finishes, Leaves, Raises, Recorder
from support.servers.asking import body
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
on_a_server = on_servers("default")

A, B, C = 870, 386, 10
FEW = [A, B, C, 300, 301]
ALLOWED = [*FEW, *range(400, 500)]

#: Processors that need no token of the history.
BLIND = {
    "ban": attach("DisallowedTokensLogitsProcessor", token_ids=FEW),
    "allow": attach("AllowedTokensLogitProcessor", token_ids=ALLOWED),
    "allow two": attach("AllowedTokensLogitProcessor", token_ids=[A, B]),
    "min length": attach("MinLengthLogitProcessor", min_tokens=4, eos_token_ids=[A, EOS]),
    "scheduled ban": attach("ScheduledBiasLogitProcessor", token_ids=[A, B], start=2, end=5),
    "scheduled bias": attach(
        "ScheduledBiasLogitProcessor", token_ids=FEW, bias=0, final_bias=6, start=1, end=6
    ),
    "top-n-sigma": attach("TopNSigmaLogitProcessor", top_n_sigma=1.5),
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
    "every token": attach(Recorder, tag="a beam", steering=True),
    "following chain": attach(
        [
            attach("BadWordsLogitProcessor", token_ids=[A, A, B], lengths=[1, 2]),
            attach("DRYLogitProcessor", dry_multiplier=3, dry_allowed_length=1),
        ]
    ),
}


loaded = cache(float64)


@pytest.fixture
def model(server):
    return loaded(server.arguments["model_path"])


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
    """Return tokens and score of each answer, best first."""
    assert reply.status == 200, reply.body
    return [
        (one["output_ids"], one["meta_info"]["sequence_score"])
        for one in reply.body["meta_info"]["beam_results"]
    ]


def check(found, expected):
    """Fail unless tokens are equal and scores nearly, which depend on the batch in their last bits.

    Args:
        found: As :func:`beams` returns it.
        expected: As ``found``.
    """
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    scores = [score for _, score in expected]
    assert [score for _, score in found] == pytest.approx(scores, abs=1e-4)


def best(prompt, attachment, model, **settings):
    """Return the answers of the search in float64, as :func:`beams` does."""
    found = search(model, prompt, ruled(attachment), **settings)
    return [(beam.tokens, beam.score) for beam in found]


@on_a_server
@pytest.mark.parametrize("width", [2, 64])
def test_beams_are_those_of_a_search_in_float64(server, model, width):
    compare_with_a_search(server, model, width)


@on_servers("no overlap, no radix cache", "two ranks")
def test_beams_are_those_of_a_search_without_overlap_and_on_two_ranks(server, model):
    compare_with_a_search(server, model, 5)


def compare_with_a_search(server, model, width):
    """Ask for beams with each processor, and for ordinary answers, which must not change."""
    chosen = random.Random(width)
    requests, wanted = [], []
    for attachment in [*BLIND.values(), *FOLLOWING.values(), None]:
        prompt = [chosen.randrange(2, 1024) for _ in range(chosen.randrange(1, 30))]
        stops = [] if chosen.random() < 0.5 else [B, EOS]
        count = chosen.randrange(1, width + 1)
        more = {"ignore_eos": not stops, "stop_token_ids": stops} if stops else {}
        sampling = {"beam_width": width, "n": count, **more}
        requests.append(asking(prompt, attachment, **sampling))
        found = best(prompt, attachment, model, width=width, length=8, stops=stops)
        wanted.append(found[:count])
        requests.append(asking(prompt, attachment))
        wanted.append(None)
    alone = [
        None if expected else server.post("/generate", request).output_ids
        for request, expected in zip(requests, wanted, strict=True)
    ]
    for reply, expected, before in zip(server.at_once(requests), wanted, alone, strict=True):
        if expected is None:
            assert reply.output_ids == before
        else:
            check(beams(reply), expected)


@on_a_server
def test_beams_with_a_temperature_are_scored_at_it(server, model):
    at_half = attach("TemperatureLogitProcessor", temperature=0.5)
    plain, scaled = (asking([5, 6, A], one, beam_width=6, n=6) for one in (None, at_half))
    scaled["sampling_params"]["temperature"] = 1.7  # which SGLang does not use for beams

    found = search(
        model, [5, 6, A], lambda _, __, row: (row / 0.5).log_softmax(-1), width=6, length=8
    )

    check(beams(server.post("/generate", scaled)), [(one.tokens, one.score) for one in found])
    check(beams(server.post("/generate", plain)), best([5, 6, A], None, model, width=6, length=8))


@on_a_server
@pytest.mark.parametrize("scores", ["model", "among"])
def test_a_beam_as_wide_as_a_catalogue_finds_all_items_by_their_probability(server, model, scores):
    prompt = [5, 9, 300]
    names = [f"item {number}" for number in range(7, 19)]
    items = {tokens for name, tokens, _ in served_items() if name in names}
    params = {"catalogue": "items", "only": names, "ends_answer": False, "scores": scores}
    attachment = attach("CatalogueLogitProcessor", **params)
    expected = []
    for item in items:
        logprobs = []
        for length, token in enumerate(item):
            row = model([[*prompt, *item[:length]]])[0].log_softmax(-1)
            left = {other[length] for other in items if other[:length] == item[:length]}
            rest = row[[*left]].logsumexp(-1) if scores == "among" else 0.0
            logprobs.append((row[token] - rest).item())
        expected.append(([*item], sum(logprobs) / 3))
    expected.sort(key=lambda one: -one[1])

    request = asking(prompt, attachment, beam_width=16, n=16, max_new_tokens=3)
    check(beams(server.post("/generate", request)), expected)


@on_a_server
@pytest.mark.parametrize(
    ("attachment", "given"),
    [
        (
            attach("DeepseekOCRNoRepeatNGramLogitProcessor", ngram_size=2, window_size=4096),
            {"no_repeat_ngram_size": 2},
        ),
        (
            attach("BadWordsLogitProcessor", token_ids=[A, B, C, C, B], lengths=[1, 2, 2]),
            {"bad_words_ids": [[A], [B, C], [C, B]]},
        ),
        (
            attach("AllowedTokensLogitProcessor", token_ids=ALLOWED),
            {"prefix_allowed_tokens_fn": lambda *_: ALLOWED},
        ),
    ],
    ids=["no repeat", "bad words", "allowed"],
)
def test_beams_are_those_of_transformers(server, tiny, attachment, given):
    width = 8
    transformer = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)
    transformer.generation_config.eos_token_id = None
    # What recurs in a prompt is what an n-gram rule has to see.
    prompt = [5, 6, A, B, A, B, 325, 720, 386]
    settings = {"max_new_tokens": 12, "num_beams": width, "num_return_sequences": width}
    found = transformer.generate(
        torch.tensor([prompt]),
        **settings,
        **given,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    asked = asking(prompt, attachment, beam_width=width, n=width, max_new_tokens=12)

    answers = beams(server.post("/generate", asked))
    tokens, scores = found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist()
    check(answers, [*zip(tokens, scores, strict=True)])


@on_a_server
def test_each_answer_says_what_ran_and_what_it_did(server):
    attachment = attach("ForcedSequenceLogitProcessor", token_ids=[300, 301])
    asked = asking([7, 8], attachment, beam_width=4, n=3)

    whole, streamed = server.post("/generate", asked), server.stream("/generate", asked)
    check(beams(whole), beams(streamed))
    assert len(streamed.events) == 1
    for reply in (whole, streamed):
        meta = reply.body["meta_info"]
        reports = [one["meta_info"]["sglang_lp"] for one in meta["beam_results"]]
        assert meta["sglang_lp"] == reports[0]
        assert len(reports) == 3
        for report in reports:
            assert report["processors"] == ["ForcedSequenceLogitProcessor"]
            assert report["forced_at"] == [[0, 2]]
    assert whole.output_ids[:2] == [300, 301]


@on_a_server
def test_what_contradicts_itself_in_beams_ends_alone(server):
    contradiction = attach(
        [
            attach("ForcedSequenceLogitProcessor", token_ids=[300, 301, 302]),
            attach("DisallowedTokensLogitsProcessor", token_ids=[302]),
        ]
    )
    beside = asking([9], BLIND["ban"], beam_width=4)
    before = beams(server.post("/generate", beside))
    asked = asking([5], contradiction, beam_width=4)
    replies = server.at_once([asked, beside, asked])

    for refused in (replies[0], replies[2], server.stream("/generate", asked)):
        assert "no token is left at token 2" in str(refused.body)
        assert "400" in str(refused.body) or refused.status == 400
    check(beams(replies[1]), before)


@on_a_server
def test_a_search_that_the_client_aborts_leaves_the_others(server):
    beside = asking([9], FOLLOWING["n-grams"], beam_width=16)
    before = beams(server.post("/generate", beside))
    long = asking([5], FOLLOWING["bad words"], beam_width=16, max_new_tokens=400)
    with ThreadPoolExecutor(1) as pool:
        aborted = pool.submit(server.post, "/generate", {**long, "rid": "to abort"})
        time.sleep(0.5)
        check(beams(server.post("/generate", beside)), before)
        server.post("/abort_request", {"rid": "to abort"})
        reply = aborted.result()
    assert reply.status != 200 or reply.finish_reason["type"] == "abort"
    check(beams(server.post("/generate", beside)), before)


#: Few enough tokens that SGLang computes prompts in chunks, and aborts searches.
@on_servers("squeezed")
def test_in_a_small_pool_a_search_is_exact_or_ends_with_an_error(server, model):
    chosen = random.Random(7)
    asked = [*BLIND.values(), *FOLLOWING.values()] * 2
    prompts = [[chosen.randrange(2, 1024) for _ in range(chosen.randrange(30))] for _ in asked]
    prompts = [[5, *prompt] for prompt in prompts]
    requests = [
        asking(prompt, attachment, beam_width=6, n=6)
        for prompt, attachment in zip(prompts, asked, strict=True)
    ]
    served = 0
    for prompt, attachment, reply in zip(prompts, asked, server.at_once(requests), strict=True):
        if reply.status != 200:
            assert "KV cache pool is full" in str(reply.body) or "memory" in str(reply.body)
            continue
        served += 1
        check(beams(reply), best(prompt, attachment, model, width=6, length=8))
    assert served > len(requests) // 2


FAULTY = {
    "raises": (Raises, {"at": 2}, 500),
    "is cancelled": (Leaves, {"at": 2, "what": "CancelledError"}, 500),
    "ends the answer": (Finishes, {"at": 2}, 400),
    "reads the request": (DenseRaises, {"at": 2}, 400),
}


@on_a_server
@pytest.mark.parametrize("name", FAULTY)
def test_what_fails_in_beams_ends_alone(server, name):
    processor, params, status = FAULTY[name]
    beside = asking([9], FOLLOWING["n-grams"], beam_width=4)
    before = beams(server.post("/generate", beside))
    asked = body([5], processor, params, beam_width=4, ignore_eos=True)
    replies = server.at_once([asked, beside])

    assert replies[0].status == status, replies[0].body
    check(beams(replies[1]), before)
    assert server.is_healthy()
