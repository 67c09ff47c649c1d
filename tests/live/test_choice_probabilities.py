"""The probabilities of choices, against Transformers in float64 and SGLang's own scores."""

import math

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from sglang_lp.client import attach, probabilities
from sglang_lp.wire.names import CHOICES_HEADER
from support.models import tiny_model
from support.models.tiny_model import EOS
from support.oracles.greedy import TOLERANCE
from support.servers.asking import body
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default")]

PROMPT = [5, 6, 7, 296, 454]
# One begins another, one has several spellings, one is a token.
CHOICES = [" w300", " w300 w301", "yes w", "no", "5"]
GENERATE = "/generate"


@pytest.fixture(scope="module")
def logprob(tiny):
    """Return a function: the logprob of tokens behind a prompt, in float64."""
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float64)

    def of(prompt, ids):
        with torch.no_grad():
            rows = model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
        places = range(len(prompt) - 1, len(prompt) + len(ids) - 1)
        return math.fsum(float(rows[at, one]) for at, one in zip(places, ids, strict=True))

    return of


def ways(text):
    """Return all tokens of the tiny model that spell an ASCII text."""
    tokenizer = tiny_model.tokenizer()
    ids = {}
    for token_id in range(tiny_model.VOCAB_SIZE):
        piece = tokenizer.decode([token_id])
        ids.setdefault(piece, []).append(token_id)
    found = [[]] if not text else []
    for end in range(1, len(text) + 1):
        found += [[one, *rest] for one in ids.get(text[:end], ()) for rest in ways(text[end:])]
    return found


def asked(choices=CHOICES, pick="likeliest", **params):
    return attach("ChoiceLogitProcessor", choices=choices, pick=pick, **params)


@pytest.mark.parametrize("pick", ["likeliest", "sampled", "tokens"])
def test_each_choice_has_the_probability_that_the_model_gives_it(server, logprob, pick):
    sampling = {"temperature": 0.7, "n": 1 if pick == "sampled" else 2}
    reply = server.post(GENERATE, asked(pick=pick).generate_body(body(PROMPT, **sampling)))
    assert reply.status == 200, reply.body
    whole = reply.body if isinstance(reply.body, list) else [reply.body]

    def expected(text, spelled):
        ends = [[EOS]] if text == " w300" else [[]]
        each = [logprob(PROMPT, [*one, *end]) for one in spelled for end in ends]
        return math.log(math.fsum(map(math.exp, each)))

    tokenizer = tiny_model.tokenizer()
    own = [expected(text, [tokenizer.encode(text).ids]) for text in CHOICES]
    for answer in whole:
        found = probabilities(answer)
        assert [*found] == CHOICES
        assert [one.logprob for one in found.scored.values()] == pytest.approx(own, abs=TOLERANCE)
        assert [one.all_spellings for one in found.scored.values()] == pytest.approx(
            [expected(text, ways(text)) for text in CHOICES], abs=TOLERANCE
        )
        shares = torch.tensor(own, dtype=torch.float64).softmax(0).tolist()
        assert [*found.values()] == pytest.approx(shares, rel=TOLERANCE)
        report = answer["meta_info"]["sglang_lp"]["choices"]
        if pick == "tokens":
            assert answer["text"] in CHOICES
        else:
            assert answer["text"] == CHOICES[report["picked"]]
            assert report["temperature"] == (0.7 if pick == "sampled" else 0)
        if pick == "likeliest":
            assert answer["text"] == found.likeliest == CHOICES[own.index(max(own))]


def test_a_whole_answer_has_the_probabilities_in_a_header(server):
    sent = asked(["yes", "no"]).generate_body(body(PROMPT))
    answer = httpx.post(server.url + GENERATE, json=sent, trust_env=False, timeout=120)

    told = [float(one) for one in answer.headers[CHOICES_HEADER].split(",")]
    assert told == pytest.approx([*probabilities(answer.json()).values()], rel=1e-5)


@pytest.mark.parametrize("stream", [False, True])
def test_openai_s_endpoints_tell_the_probabilities_and_answer_with_the_pick(server, stream):
    plain = server.post(GENERATE, asked().generate_body(body(PROMPT)))
    expected = probabilities(plain.body)
    fields = {"model": "tiny", "max_tokens": 20, "temperature": 0, "return_meta_info": True}
    fields |= {"stream": stream, **asked().extra_body()}
    chat = {"messages": [{"role": "user", "content": "#"}], **fields}
    bodies = {"/v1/completions": {"prompt": PROMPT, **fields}, "/v1/chat/completions": chat}

    for path, sent in bodies.items():
        reply = (server.stream if stream else server.post)(path, sent)
        assert reply.status == 200, reply.body
        events = reply.events or [reply.body]
        told = [one for one in events if one["choices"] and one["choices"][0].get("meta_info")]
        found = probabilities(told[-1])
        parts = [one["choices"][0] for one in events if one["choices"]]
        said = "".join(
            one.get("text") or (one.get("delta") or one.get("message") or {}).get("content") or ""
            for one in parts
        )
        assert said == found.likeliest
        if path == "/v1/completions":
            assert {**found} == pytest.approx({**expected}, rel=TOLERANCE)


def test_single_tokens_have_sglang_s_own_score(server):
    tokens = [300, 301, 302, 310]
    score = {"query": PROMPT, "items": [[454]], "label_token_ids": tokens, "apply_softmax": True}
    own = server.post("/v1/score", {"model": "tiny", **score})
    assert own.status == 200, own.body

    params = {"token_ids": tokens, "lengths": [1] * 4, "pick": "tokens"}
    one = attach("ChoiceLogitProcessor", **params)
    reply = server.post(GENERATE, one.generate_body(body([*PROMPT, 454])))

    found = probabilities(reply.body)
    assert [*found] == [(token,) for token in tokens]
    assert [*found.values()] == pytest.approx(own.body["scores"][0], rel=TOLERANCE)


def test_choices_are_scored_in_a_chain_in_lists_and_with_other_rules(server):
    ban = attach("DisallowedTokensLogitsProcessor", token_ids=[EOS + 1])
    both = attach([ban, asked(["yes", "no"])])
    alone = probabilities(
        server.post(GENERATE, asked(["yes", "no"]).generate_body(body(PROMPT))).body
    )

    many = {**both.generate_body(body(PROMPT)), "input_ids": [PROMPT, [8, 9], PROMPT]}
    first, second, third = server.post(GENERATE, many).body

    assert {**probabilities(first)} == pytest.approx({**alone}, rel=TOLERANCE)
    assert {**probabilities(third)} == pytest.approx({**alone}, rel=TOLERANCE)
    assert {**probabilities(second)} != pytest.approx({**alone}, rel=TOLERANCE)
    assert first["text"] == third["text"] == alone.likeliest


def test_a_list_has_a_bounded_number_of_texts_whose_choices_are_scored(server):
    many = {**asked(["yes", "no"]).generate_body(body(PROMPT)), "input_ids": [PROMPT] * 17}

    reply = server.post(GENERATE, many)

    assert reply.status == 400
    assert "at most 16 texts" in str(reply.body)


@pytest.mark.parametrize(
    ("params", "sampling", "why"),
    [
        ({"pick": "sampled"}, {"n": 2}, "with n of 1"),
        ({"resumed_tokens": 1}, {}, "resumed_tokens"),
        ({}, {"beam_width": 4}, "beam_width"),
        ({"where": "answer"}, {}, "where"),
        ({"choices": [f"w{i}" for i in range(65)]}, {}, "at most 64"),
    ],
)
def test_choices_that_cannot_be_scored_are_refused(server, params, sampling, why):
    request = body(PROMPT, **sampling)
    given = {"choices": ["yes", "no"], "pick": "likeliest", **params}
    request["custom_logit_processor"] = "ChoiceLogitProcessor"
    request["sampling_params"]["custom_params"] = given

    reply = server.post(GENERATE, request)

    assert reply.status == 400
    assert why in str(reply.body)
