"""Watermarks of real servers: the tokens are those of Transformers, and detectors find them."""

from __future__ import annotations

import json
import random
import re
import statistics
from types import SimpleNamespace

import httpx
import pytest
import torch
from transformers import (
    SynthIDTextWatermarkLogitsProcessor,
    WatermarkDetector,
    WatermarkLogitsProcessor,
)

from sglang_lp.builtins import ChainLogitProcessor, WatermarkLogitProcessor
from sglang_lp.server.front.listing import LIST_PATH
from sglang_lp.watermark.keys import GreenKey
from sglang_lp.watermark.reading import scheme_of
from support.models.tiny_model import VOCAB_SIZE
from support.servers.asking import body
from support.servers.configurations import WATERMARKED, on_servers
from support.watermarks import GREEN, GREEN_SCHEME, TOURNAMENT, TOURNAMENT_SCHEME

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
on_each = on_servers(*WATERMARKED)
on_green_lists = on_servers("green lists")
on_a_tournament = on_servers("tournament")
on_tournaments = on_servers(*[name for name in WATERMARKED if name != "green lists"])

ANSWERS, LENGTH = 120, 60
WRONG = scheme_of(GreenKey(**{**GREEN, "hashing_key": 987_654_321}))


def scheme_of(server):
    return GREEN_SCHEME if server.arguments.get("max_total_tokens") == 512 else TOURNAMENT_SCHEME


def prompts(count):
    rng = random.Random(count)
    return [[rng.randrange(2, 1024) for _ in range(rng.randint(1, 30))] for _ in range(count)]


def marked(prompt, **sampling):
    return body(prompt, WatermarkLogitProcessor, {}, **sampling)


def answers_of(server, asked):
    """Return the tokens of sampled answers of ``LENGTH`` tokens."""
    for one in asked:
        given = {"temperature": 1.0, "max_new_tokens": LENGTH, "ignore_eos": True}
        one["sampling_params"] = given | one["sampling_params"] | {"temperature": 1.0, **given}
    found = []
    for start in range(0, len(asked), 40):
        for reply in server.at_once(asked[start : start + 40], stagger=0.005):
            assert reply.status == 200, reply.body
            found.append(reply.output_ids)
    return found


@on_green_lists
def test_greedy_answers_are_those_of_transformers_through_retractions(server, oracle):
    theirs = WatermarkLogitsProcessor(VOCAB_SIZE, "cpu", **GREEN)

    def rule(_prompt, history, row):
        return theirs(torch.tensor([history]), row[None])[0] if history else row

    asked = [(prompt, marked(prompt)) for prompt in prompts(30)]
    replies = server.at_once([one for _, one in asked], stagger=0.01)

    for (prompt, _), reply in zip(asked, replies, strict=True):
        assert reply.status == 200, reply.body
        oracle.check(prompt, reply.output_ids, rule)


@on_each
def test_marked_answers_are_found_and_others_are_not(server):
    scheme = scheme_of(server)
    asked = [marked(prompt) for prompt in prompts(ANSWERS)]
    plain = [body(prompt) for prompt in prompts(ANSWERS)]
    found = [scheme.detect(one, VOCAB_SIZE) for one in answers_of(server, asked)]
    others = [scheme.detect(one, VOCAB_SIZE) for one in answers_of(server, plain)]

    assert statistics.median(one.p_value for one in found) < 1e-6
    assert sum(one.p_value < 1e-3 for one in found) >= 0.98 * ANSWERS
    # As many as chance finds: 6 of 120, at most 14 in all but one run of a thousand.
    assert sum(one.p_value < 0.05 for one in others) <= 14
    assert min(one.p_value for one in others) > 1e-5


@on_each
def test_transformers_finds_the_same(server):
    scheme = scheme_of(server)
    (answer, *_) = answers_of(server, [marked(prompt) for prompt in prompts(3)])
    own, tokens = scheme.detect(answer, VOCAB_SIZE), torch.tensor([answer])

    if scheme is GREEN_SCHEME:
        model = SimpleNamespace(bos_token_id=-1, vocab_size=VOCAB_SIZE, is_encoder_decoder=False)
        theirs = WatermarkDetector(model, "cpu", GREEN, ignore_repeated_ngrams=True)
        judged = theirs(tokens, return_dict=True)
        assert judged.prediction.all()
        assert judged.num_tokens_scored == own.scored
        assert judged.num_green_tokens == round(own.score * own.scored)
    else:
        theirs = SynthIDTextWatermarkLogitsProcessor(**TOURNAMENT, device="cpu")
        values = theirs.compute_g_values(tokens)[0].double()
        seen = theirs.compute_context_repetition_mask(tokens)[0]
        weights = torch.linspace(10, 1, values.shape[1], dtype=torch.float64)
        score = (values[seen].mean(0) * weights).sum() / weights.sum()
        assert own.scored == int(seen.sum())
        assert abs(own.score - float(score)) < 1e-6


@on_each
def test_a_wrong_key_finds_nothing(server):
    answers = answers_of(server, [marked(prompt) for prompt in prompts(20)])

    assert min(WRONG.detect(one, VOCAB_SIZE).p_value for one in answers) > 1e-5


@on_each
def test_copies_differ_and_each_is_marked(server):
    (prompt,) = prompts(1)
    asked = marked(prompt, n=4, temperature=1.0, max_new_tokens=LENGTH, ignore_eos=True)
    copies = [tuple(one["output_ids"]) for one in server.post("/generate", asked).body]

    assert len({*copies}) == 4
    assert all(scheme_of(server).detect(one, VOCAB_SIZE).p_value < 1e-2 for one in copies)


@on_green_lists
def test_an_answer_goes_on_as_if_it_had_not_been_cut(server):
    (prompt,) = prompts(1)
    whole = server.post("/generate", marked(prompt)).output_ids
    for cut in (1, 2, 17):
        asked = body([*prompt, *whole[:cut]], WatermarkLogitProcessor, {"resumed_tokens": cut})
        rest = server.post("/generate", asked)

        assert rest.status == 200, rest.body
        assert rest.output_ids[: len(whole) - cut] == whole[cut:]


@on_tournaments
def test_a_resumed_answer_does_not_mark_a_context_again(server):
    (prompt,) = prompts(1)
    begun = [300, 301, 302, 303, 304, 300, 301, 302, 303]  # its context marked 304
    params = {"resumed_tokens": len(begun)}
    asked = body(
        [*prompt, *begun],
        WatermarkLogitProcessor,
        params,
        temperature=1.0,
        max_new_tokens=1,
        ignore_eos=True,
    )
    firsts = [[*begun, *one] for one in answers_of_one_token(server, asked)]
    values = [TOURNAMENT_SCHEME.g_values([one[-5:-1]], [one[-1]]).mean() for one in firsts]

    assert 0.4 < statistics.mean(values) < 0.6


def answers_of_one_token(server, asked):
    return [reply.output_ids for reply in server.at_once([asked] * 40)]


@on_a_tournament
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("cut", [{}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}])
def test_the_probabilities_of_a_first_marked_token_are_those_of_transformers(
    server, oracle, temperature, cut
):
    """SGLang's own logprobs are taken after all edits."""
    begun = [300, 301, 302, 303]
    asked = body(
        [5, *begun],
        WatermarkLogitProcessor,
        {"resumed_tokens": 4},
        temperature=temperature,
        max_new_tokens=1,
        **cut,
    )
    asked |= {"return_logprob": True, "top_logprobs_num": 10}
    reply = server.post("/generate", asked)
    assert reply.status == 200, reply.body
    said = {one[1]: one[0] for one in reply.body["meta_info"]["output_top_logprobs"][0]}
    row = oracle.logits([5, *begun], [300])[:1] / temperature
    expected = transformed(row, begun, cut)

    for token_id, logprob in said.items():
        if logprob is not None and logprob > -10:
            assert abs(logprob - expected[token_id]) < 0.05


def transformed(scores, begun, cut):
    """Return the logprobs of Transformers: its cuts, and then its watermark."""
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    kinds = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
    # Only as many tokens take part, and the others keep their probability.
    whole = scores.softmax(-1)[0]
    head = whole >= whole.topk(128).values[-1]
    for name, value in cut.items():
        left = kinds[name](value)(None, scores)
        # SGLang takes these logprobs before it cuts the other tokens.
        if left.isfinite().sum() < 128:
            scores, head = left, left[0].isfinite()
    theirs = SynthIDTextWatermarkLogitsProcessor(
        **TOURNAMENT, device="cpu", skip_first_ngram_calls=True
    )
    for end in range(5):
        won = theirs(torch.tensor([[0, *begun][: end + 1]]), scores.masked_fill(~head, -torch.inf))
    won = won.softmax(-1)[0] * scores.softmax(-1)[0][head].sum()
    return torch.where(head, won, scores.softmax(-1)[0]).log()


@on_a_tournament
def test_greedy_answers_stay_and_a_grammar_holds(server):
    for prompt in prompts(5):
        plain, own = (
            server.post("/generate", body(prompt)),
            server.post("/generate", marked(prompt)),
        )
        assert own.output_ids == plain.output_ids
    asked = marked([5], temperature=1.0, max_new_tokens=30, regex="(w30[0-9] ){3,9}")
    for reply in server.at_once([asked] * 5):
        assert reply.status == 200
        assert re.fullmatch("(w30[0-9] ?){3,9}", reply.body["text"])


@on_a_tournament
def test_choices_and_forced_tokens_hold(server):
    params = {
        "chain": ["WatermarkLogitProcessor", "ForcedSequenceLogitProcessor"],
        "1.token_ids": [*range(300, 312)],
    }
    asked = body([5], ChainLogitProcessor, params, temperature=1.0, max_new_tokens=20)
    for reply in server.at_once([asked] * 5):
        assert reply.output_ids[:12] == [*range(300, 312)]
    params = {"chain": ["WatermarkLogitProcessor", "AllowedTokensLogitProcessor"]}
    params |= {"1.token_ids": [300, 301, 302]}
    asked = body([5], ChainLogitProcessor, params, temperature=1.0, max_new_tokens=40)
    for reply in server.at_once([asked] * 5):
        assert {*reply.output_ids} <= {300, 301, 302}


@on_green_lists
def test_beams_are_refused(server):
    reply = server.post("/generate", marked([5], beam_width=3))

    assert reply.status == 400
    assert "it is for answers that are sampled" in str(reply.body)


@on_each
def test_a_profile_marks_and_no_client_chooses_a_key(server):
    asked = body([5], temperature=1.0, max_new_tokens=LENGTH, ignore_eos=True)
    reply = server.post("/generate", {**asked, "custom_logit_processor": "marked"})
    assert scheme_of(server).detect(reply.output_ids, VOCAB_SIZE).p_value < 1e-2
    for name in ("key", "hashing_key", "keys", "scheme", "watermark"):
        refused = server.post("/generate", body([5], WatermarkLogitProcessor, {name: 7}))
        assert refused.status == 400
        assert "unknown parameter" in str(refused.body)


@on_each
def test_the_key_is_in_no_answer_metric_log_or_list(server):
    keys = [GREEN["hashing_key"], *TOURNAMENT["keys"][1:], TOURNAMENT["sampling_table_seed"]]
    asked = [marked([5]), marked([5], beam_width=3), body([5], WatermarkLogitProcessor, {"key": 7})]
    asked[0] |= {"return_logprob": True}
    said = [json.dumps(server.post("/generate", one).body) for one in asked]
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        paths = (LIST_PATH, "/metrics", "/server_info", "/get_server_info", "/model_info")
        said += [client.get(path).text for path in paths]
    said.append(server.log_text())

    for text in said:
        for key in keys:
            assert str(key) not in text
            assert f"{key:x}" not in text
