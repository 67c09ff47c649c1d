"""Processors of other engines on a real server: alone, together, and when they go wrong."""

from __future__ import annotations

import random
from itertools import cycle, islice

import pytest
import torch

from sglang_lp.adapters import load
from sglang_lp.builtins import (
    ChainLogitProcessor,
    DeepseekOCRNoRepeatNGramLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from support.models.tiny_model import EOS, FREQUENT, word
from support.servers.asking import body
from support.servers.configurations import DRAFTING, on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

START, END, NEWLINE = FREQUENT[:3]
#: Every interface, with processors of this toolkit and with no processor.
KINDS = [
    ("TargetToken", {"target_token": 300}),
    ("TargetToken", {"vllm_xargs": {"target_token": 301}}),
    ("TargetToken", {}),
    ("Alternating", {"cycle": [310, 311, 312]}),
    ("SpelledAdapter", {"tokens": [*range(320, 340)]}),
    ("NoRepeatV2", {"penalty": 30.0}),
    ("NoRepeatV2", {}),
    ("Polite", {"penalty": 1.4}),
    ("Counted", {"first": 400}),
    ("DynamoForced", {"token_ids": [*range(340, 360)], "eos_token_id": EOS}),
    ("echo", {}),
    (DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 1, "window_size": 20}),
    (
        ThinkingBudgetLogitProcessor,
        {
            "thinking_budget": 5,
            "thinking_start_token_id": START,
            "thinking_end_token_id": END,
            "new_line_token_id": NEWLINE,
        },
    ),
    (None, None),
]


def asked(prompt, kind, params, **sampling):
    """Return the body of a request for a foreign class, by the name that the policy has."""
    if not isinstance(kind, str):
        return body(prompt, kind, params, **sampling)
    request = body(prompt, **sampling)
    request["custom_logit_processor"] = f"support.processors.foreign:{kind}"
    request["sampling_params"]["custom_params"] = params
    return request


@on_servers("default", "squeezed")
def test_answers_are_the_same_alone_and_among_thirty_two(server):
    rng = random.Random(17)
    requests = []
    for kind, params in islice(cycle(KINDS), 32):
        prompt = [rng.randrange(2, 1024) for _ in range(rng.randint(1, 40))]
        requests.append(asked(prompt, kind, params, max_new_tokens=rng.randint(20, 50)))
    alone = [server.post("/generate", request) for request in requests]
    assert {reply.status for reply in alone} == {200}
    forced = {"SpelledAdapter": [*range(320, 340)], "Alternating": [310, 311, 312, 310]}
    for request, reply in zip(requests, alone, strict=True):
        name = request.get("custom_logit_processor", "").rpartition(":")[2]
        start = forced.get(name, [])
        assert reply.output_ids[: len(start)] == start

    is_squeezed = server.arguments.get("max_total_tokens") == 512
    for turn in range(8):
        together = server.at_once(requests, 0.02 * (turn % 2))
        assert [reply.output_ids for reply in together] == [reply.output_ids for reply in alone]
        # On a busy machine they may come too slowly to be retracted.
        retracted = "KV cache pool is full. Retract requests" in server.log_text()
        if turn and retracted >= is_squeezed:
            break
    assert retracted >= is_squeezed


@on_servers("default")
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_vllms_own_field_holds_parameters_in_openais_endpoints(server, path):
    prompt = {"prompt": "a"}
    if "chat" in path:
        prompt = {"messages": [{"role": "user", "content": "a"}]}
    request = {
        "model": "tiny",
        "temperature": 0,
        "max_tokens": 3,
        **prompt,
        "custom_logit_processor": "support.processors.foreign:TargetToken",
        "vllm_xargs": {"target_token": 301},
    }
    (choice,) = server.post(path, request).body["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]

    assert text == word(301) * 3
    refused = server.post(path, {**request, "vllm_xargs": {"target_token": "a"}})
    assert refused.status == 400
    twice = server.post(path, {**request, "custom_params": {"target_token": 301}})
    assert (twice.status, "give it once" in twice.body["message"]) == (400, True)


@on_servers("default")
def test_every_answer_of_n_has_an_object_of_its_own(server):
    request = asked([5, 6], "Counted", {"first": 400}, n=4, temperature=1.0, max_new_tokens=6)
    replies = server.post("/generate", request).body

    assert [reply["output_ids"] for reply in replies] == [[*range(400, 406)]] * 4


@on_servers("default")
def test_a_stream_is_the_same_answer(server):
    request = asked([5, 6], "Counted", {"first": 400}, max_new_tokens=6)

    assert server.stream("/generate", request).output_ids == [*range(400, 406)]


@on_servers("default")
@pytest.mark.parametrize(
    ("kind", "params", "why"),
    [
        ("TargetToken", {"target_token": "x"}, "target_token value x is not int"),
        ("NoRepeatV2", {"penalty": -1.0}, "penalty must be a positive float"),
        ("Counted", {}, ": required, but not given"),
        ("Counted", {"first": 1, "last": 2}, "unknown parameter 'last'; its parameters: first"),
        ("Misbehaving", {"how": "made"}, "the class refuses them: 'no way'"),
        ("DynamoForced", {"token_ids": [4096], "eos_token_id": 1}, "0 to 1023, got 4096"),
    ],
)
def test_wrong_arguments_are_an_http_400(server, kind, params, why):
    request = asked([5], kind, params)
    for reply in (server.post("/generate", request), server.stream("/generate", request)):
        assert reply.status == 400
        assert f"support.processors.foreign:{kind} (" in str(reply.body)
        assert why in str(reply.body)


@on_servers("default")
def test_a_fault_ends_its_own_request(server):
    prompt = [5, 6, 7, 8]
    good = [asked([5], "Misbehaving", {"how": "nan"}, max_new_tokens=2)]
    good += [
        asked([5], "MisbehavingV1", {"cycle": [300, 301]}),
        asked([5], "Polite", {"penalty": 1.4}),
    ]
    bad = [
        asked(prompt, "Misbehaving", {"how": how}) for how in ("raises", "exits", "shape", "nan")
    ]
    bad += [asked([5], "MisbehavingV1", {"cycle": [first, 6]}) for first in (13, 14)]
    alone = [server.post("/generate", request).output_ids for request in good]
    replies = server.at_once([*good, *bad])

    assert [reply.output_ids for reply in replies[: len(good)]] == alone
    for request, reply in zip(bad, replies[len(good) :], strict=True):
        assert reply.status == 500
        assert request["custom_logit_processor"] + " (" in reply.body["message"]
        assert " failed at token " in reply.body["message"]
    assert server.is_healthy()


@on_servers("default")
@pytest.mark.parametrize(
    ("kind", "params", "tokens"),
    [
        ("TargetToken", {"target_token": 300}, [300] * 4),
        ("SpelledAdapter", {"tokens": [320, 321, 322, 323]}, [320, 321, 322, 323]),
        ("Counted", {"first": 400}, [400, 401, 402, 403]),
    ],
)
def test_in_a_chain_what_others_declare_holds_for_its_result(server, kind, params, tokens):
    chain = {
        "chain": [f"support.processors.foreign:{kind}", "ScheduledBiasLogitProcessor"],
        **{f"0.{name}": value for name, value in params.items()},
        "1.token_ids": [500],
        "1.bias": 100.0,
    }
    together = server.at_once(
        [
            body([5, 6], ChainLogitProcessor, chain, max_new_tokens=4),
            asked([5, 6], kind, params, max_new_tokens=4),
            body([5, 6], ChainLogitProcessor, {**chain, "1.start": 3}, max_new_tokens=4),
        ]
    )
    answers = [reply.output_ids for reply in together]
    # What masks all other tokens leaves nothing for a bias to lift.
    assert answers == [tokens, tokens, tokens]
    banned = {
        "chain": [f"support.processors.foreign:{kind}", "DisallowedTokensLogitsProcessor"],
        **{f"0.{name}": value for name, value in params.items()},
        "1.token_ids": tokens[2:3],
    }
    ended = server.post("/generate", body([5], ChainLogitProcessor, banned, max_new_tokens=4))
    at = tokens.index(tokens[2])
    assert ended.status == 400
    assert f"no token is left at token {at} by " in ended.body["error"]["message"]


@on_servers(*DRAFTING)
def test_servers_that_draft_refuse_by_name_whose_state_cannot_be_copied(server):
    for kind in ("TargetToken", "SpelledAdapter", "NoRepeatV2"):
        params = next(params for name, params in KINDS if name == kind)
        reply = server.post("/generate", asked([5], kind, params))
        assert reply.status == 400
        assert f", got support.processors.foreign:{kind}: its state cannot be forked" in str(
            reply.body
        )


@on_servers(*DRAFTING)
def test_servers_that_draft_compute_whole_rows_at_every_drafted_token(server, oracle):
    polite = load("support.processors.foreign", "Polite", "test")

    def politely(prompt, history, row):
        return polite(1.4)(torch.tensor([[*prompt, *history]]), row[None])[0]

    rng = random.Random(31)
    prompts = [rng.sample(range(2, 1024), 9) for _ in range(4)]
    chain = {"chain": ["support.processors.foreign:Polite", "DisallowedTokensLogitsProcessor"]}
    banned = {**chain, "0.penalty": 1.4, "1.token_ids": [*FREQUENT]}
    requests = [
        *(asked(prompt, "Polite", {"penalty": 1.4}, max_new_tokens=30) for prompt in prompts),
        asked([5, 6], "Counted", {"first": 400}, max_new_tokens=20),
        asked([5, 6], "DynamoForced", {"token_ids": [*range(340, 360)], "eos_token_id": EOS}),
        asked([5, 6, 7], "echo", {}, max_new_tokens=8),
        asked([5], "Misbehaving", {"how": "nothing"}),
        body(prompts[0], ChainLogitProcessor, banned, max_new_tokens=20),
    ]
    *answers, counted, forced, echoed, failed, chained = server.at_once(requests)

    for prompt, reply in zip(prompts, answers, strict=True):
        oracle.check(prompt, reply.output_ids, politely)
    assert counted.output_ids == [*range(400, 420)]
    assert forced.output_ids == [*range(340, 360), EOS]
    assert echoed.output_ids == [5, 6, 7, 5, 6, 7, 5, 6]
    assert "Misbehaving (transformers) failed at token 3: it returned" in str(failed.body)
    assert len(chained.output_ids) == 20
    assert {*chained.output_ids}.isdisjoint(FREQUENT)
