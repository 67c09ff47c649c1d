"""Prefill and decode on two servers answer as one server, and no client waits after a refusal."""

from __future__ import annotations

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_lp import builtins
from sglang_lp.client import attach, resume
from support.catalogues import with_catalogue
from support.cpu import seeds
from support.models import draft_models, tiny_model
from support.models.tiny_model import EOS, FREQUENT
from support.oracles.greedy import Oracle, free, rule
from support.plugins import PROBES
from support.processors.eager import CHAIN, CHOICE, START, THINKING
from support.processors.recording import Finishes, Raises, Recorder
from support.servers.asking import body, recorder, tag
from support.servers.configurations import POLICY, RANKS_VARIABLES, SERVERS
from support.servers.disaggregated import missing, pair
from support.servers.server import launch
from tests.live.test_history import LONG, until_quiet
from tests.live.test_ranks import seen_alike, slowed
from tests.live.test_whole_answers import PATTERN

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

#: What each server adds to ``CPU_ARGUMENTS``, and its environment variables.
SETTINGS = {
    "one token a step": (
        {"enable_deterministic_inference": True, "grammar_backend": "xgrammar"},
        seeds.VARIABLES,
    ),
    "eagle chains": SERVERS["eagle chains"],
    "eagle3 trees": SERVERS["eagle3 trees"],
    "one rank and two": ({"model_path": "llama"}, RANKS_VARIABLES),
    "eagle chains, two ranks and one": SERVERS["two ranks, eagle chains"],
}
#: How many ranks the prefill and the decode server have.
WIDTHS = {
    "one rank and two": (1, 2),
    "eagle chains, two ranks and one": (2, 1),
}
CASES = [
    None,
    (builtins.BadWordsLogitProcessor, {"token_ids": [*FREQUENT], "lengths": [2, 1, 2]}),
    (builtins.CatalogueLogitProcessor, {"catalogue": "items", "max_items": 4}),
    (builtins.CatalogueLogitProcessor, {"catalogue": "items", "exclude": ["item 7"]}),
    CHAIN,
    CHOICE,
    (builtins.DisallowedTokensLogitsProcessor, {"token_ids": [*FREQUENT]}),
    (builtins.ForcedSequenceLogitProcessor, {"token_ids": [*range(300, 310)]}),
    (builtins.ForcedSequenceLogitProcessor, {"token_ids": [301], "eos_token_ids": [EOS]}),
    (builtins.LoopBreakerLogitProcessor, {"max_pattern_size": 3, "min_count": 2}),
    (builtins.MinLengthLogitProcessor, {"min_tokens": 20, "eos_token_ids": [EOS, *FREQUENT]}),
    (builtins.DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 1, "window_size": 20}),
    (builtins.DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 2, "window_size": 100}),
    (builtins.ThinkingBudgetLogitProcessor, {"thinking_budget": 0, **THINKING}),
    (builtins.ThinkingBudgetLogitProcessor, {"thinking_budget": 1, **THINKING}),
    (builtins.ThinkingBudgetLogitProcessor, {"thinking_budget": 5, **THINKING}),
    (Recorder, {"tag": "a", "steering": True}),
]
#: Allowed and disallowed at once: no token is left, which is known once there are logits.
IMPOSSIBLE = (
    builtins.ChainLogitProcessor,
    {
        "chain": ["AllowedTokensLogitProcessor", "DisallowedTokensLogitsProcessor"],
        "0.token_ids": [400],
        "1.token_ids": [400],
    },
)
#: SGLang's own patience is 300 s, and that of these servers a minute.
AT_ONCE = 15


def requests():
    """Return greedy requests of every kind, with short prompts and long ones."""
    rng = random.Random(3)
    bodies = []
    for kind in CASES:
        for length in (1, 7, 90):
            prompt = [rng.randrange(2, 1024) for _ in range(length)]
            if length == 7:
                prompt.append(START)
            answer = rng.choice((1, 2, 24))
            bodies.append(body(prompt, *(kind or ()), max_new_tokens=answer))
    return bodies


@pytest.fixture(scope="module", params=SETTINGS)
def setting(request, tmp_path_factory):
    """Return a model, arguments and variables, and how many ranks each server has."""
    arguments, variables = SETTINGS[request.param]
    tiny = tiny_model.make(tmp_path_factory.mktemp("tiny-model"))
    models = draft_models.make_all(tmp_path_factory.mktemp("draft-models"), tiny)
    arguments = {
        name: models[value] if name.endswith("model_path") else value
        for name, value in arguments.items()
    }
    model = arguments.pop("model_path", tiny)
    widths = WIDTHS.get(request.param, (1, 1))
    policy = with_catalogue(POLICY, tmp_path_factory.mktemp("policy"))
    return model, arguments, {"SGLANG_LP_POLICY": str(policy), **variables}, widths


@pytest.fixture(scope="module")
def single(setting, tmp_path_factory):
    """Answers of one guarded server to :func:`requests`, :data:`LAST` and :data:`SEEDED`."""
    model, arguments, variables, _ = setting
    arguments = {**arguments, "chunked_prefill_size": 64, "tp_size": 1}
    directory = tmp_path_factory.mktemp("single")
    with launch(
        model, directory, arguments, paths=[PROBES], variables=variables, forked=True
    ) as server:
        return (
            server.at_once(requests()),
            [server.post("/generate", one) for one in LAST],
            server.at_once(SEEDED),
        )


@pytest.fixture(scope="module")
def both(setting, tmp_path_factory):
    model, arguments, variables, (ahead, behind) = setting
    directory = tmp_path_factory.mktemp("pair")
    prefill = {**arguments, "chunked_prefill_size": 64, "tp_size": ahead}
    decode = {**arguments, "tp_size": behind}
    with pair(model, directory, (prefill, variables), (decode, variables), paths=[PROBES]) as both:
        yield both


@pytest.fixture(scope="module")
def oracle(setting):
    return Oracle(setting[0])


#: Ends and errors at the first token.
LAST = [
    body([5, 6], Finishes, {"at": 0}),
    body([5, 6], Finishes, {"at": 0}, max_new_tokens=1),
    body([5, 6], Finishes, {"at": 1}),
    body([5, 6], *IMPOSSIBLE),
    body([5, 6], Raises, {"at": 0}),
    body([5, 6], Raises, {"at": 3}),
]


#: Sampled, and each with its seed.
SEEDED = [
    body([*range(40, 60)], *(kind or ()), temperature=1.0, sampling_seed=seed, max_new_tokens=20)
    for seed, kind in enumerate(CASES)
]


def told(reply):
    """Return tokens, finish reason and report of an answer, or its error."""
    if reply.status != 200:
        return reply.status, reply.body.get("error", reply.body)["message"]
    meta = reply.body["meta_info"]
    return reply.output_ids, meta["finish_reason"], meta.get("sglang_lp")


def test_every_answer_is_that_of_a_single_server(single, both):
    replies = both.at_once(requests())
    for request, alone, reply in zip(requests(), single[0], replies, strict=True):
        assert told(reply) == told(alone), request


@pytest.mark.parametrize("at", range(len(LAST)))
def test_an_end_or_error_is_that_of_a_single_server_and_at_once(single, both, at):
    began = time.monotonic()
    answers = both.ask("/generate", LAST[at])

    assert told(answers.decode) == told(single[1][at])
    assert time.monotonic() - began < AT_ONCE  # both have answered


def test_a_streamed_answer_is_the_same(single, both):
    bodies = requests()[::5]
    for request, alone in zip(bodies, single[0][::5], strict=True):
        assert told(both.stream("/generate", request)) == told(alone)


@pytest.mark.parametrize("setting", ["one token a step"], indirect=True)
def test_an_answer_that_is_sampled_by_a_seed_is_that_of_a_single_server(single, both):
    for request, alone, reply in zip(SEEDED, single[2], both.at_once(SEEDED), strict=True):
        assert told(reply) == told(alone), request
    assert len({(*reply.output_ids,) for reply in single[2]}) > len(SEEDED) / 2


def test_sampled_answers_keep_to_the_rules(oracle, both):
    for kind in CASES[1:]:
        request = body([*range(40, 60)], *kind, temperature=1.0, max_new_tokens=20)
        reply = both.post("/generate", request)
        assert reply.status == 200, reply.body
        oracle.check(request["input_ids"], reply.output_ids, rule(*kind), sampled=True)


REFUSED = body([5], builtins.ForcedSequenceLogitProcessor, {"token_ids": [1 << 30]})


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_both_refuse_is_refused_at_once(both, stream):
    began = time.monotonic()
    answers = both.ask("/generate", REFUSED, stream=stream)

    assert [answer.status for answer in answers] == [400, 400]
    assert "1073741824" in str(answers.decode.body)
    assert time.monotonic() - began < AT_ONCE


@pytest.mark.parametrize("refusing", ["prefill", "decode"])
def test_a_request_that_one_server_refuses_leaves_neither_waiting(both, refusing):
    plain = body([*range(50)], max_new_tokens=30)
    sent, to_prefill = (plain, REFUSED) if refusing == "prefill" else (REFUSED, plain)
    began = time.monotonic()
    answers = both.ask("/generate", sent, to_prefill=to_prefill)

    assert getattr(answers, refusing).status == 400
    if refusing == "prefill":
        assert answers.decode.status == 400
        assert "1073741824" in str(answers.decode.body)
    assert time.monotonic() - began < AT_ONCE
    # Nothing of it is left over.
    assert both.post("/generate", plain).status == 200


def test_an_answer_that_was_cut_goes_on_as_if_it_had_not_been(oracle, both):
    prompt = [5, 6, 7, START]
    cuts = []
    for kind in CASES[1:-1]:
        attachment = attach(kind[0].__name__, **kind[1])
        whole = both.post("/generate", attachment.generate_body(body(prompt, max_new_tokens=12)))
        cuts += [
            (
                kind,
                so_far,
                resume(attachment, body(prompt, max_new_tokens=12), {"output_ids": so_far}),
            )
            for so_far in (whole.output_ids[:cut] for cut in range(1, len(whole.output_ids), 2))
        ]
    replies = both.at_once([request for _, _, request in cuts])
    for (kind, so_far, _), reply in zip(cuts, replies, strict=True):
        assert reply.status == 200, reply.body
        oracle.check(prompt, [*so_far, *reply.output_ids], rule(*kind))


@pytest.mark.parametrize(
    "setting", [name for name in SETTINGS if "eagle chains" in name], indirect=True
)
def test_drafts_are_accepted_on_the_decode_server(both):
    reply = both.post("/generate", body([*range(300, 309)], max_new_tokens=30))
    assert reply.body["meta_info"]["spec_num_correct_drafts"] > 0


@pytest.mark.parametrize("setting", ["one token a step", "eagle chains"], indirect=True)
def test_a_structured_answer_is_complete_at_every_limit(both):
    def asked(limit):
        custom = {"custom_params": {"whole_answer": True}}
        return body([5, 6, limit], regex=PATTERN, temperature=1.0, max_new_tokens=limit, **custom)

    began = time.monotonic()
    refused = both.ask("/generate", asked(1))
    assert [answer.status for answer in refused] == [400, 400]
    assert time.monotonic() - began < AT_ONCE
    fewest = int(re.search(r"max_new_tokens of (\d+)", str(refused.decode.body))[1])
    limits = [*range(fewest, fewest + 12), 48]
    for limit, reply in zip(limits, both.at_once([*map(asked, limits)]), strict=True):
        assert reply.status == 200, reply.body
        assert reply.finish_reason["type"] == "stop"
        assert re.fullmatch(PATTERN, reply.body["text"]), (limit, reply.body["text"])


def test_without_a_processor_they_answer_as_the_model_does(oracle, both):
    request = body([*range(300, 320)])
    oracle.check(request["input_ids"], both.post("/generate", request).output_ids, free)


@pytest.mark.parametrize("setting", WIDTHS, indirect=True)
@pytest.mark.parametrize("slow", [0, -1])
def test_every_rank_of_a_server_sees_a_request_alike(oracle, both, slow):
    wide = max(both.prefill, both.decode, key=lambda server: server.arguments["tp_size"])
    first = recorder([7], max_new_tokens=2)
    both.post("/generate", first)
    processes = sorted({line["pid"] for line in until_quiet(wide, tag(first))})
    neighbours = [recorder([600 + i, 7], steering=True, max_new_tokens=30) for i in range(4)]
    failing = [body([5], Raises, {"at": at}) for at in (0, 4)]
    aborted = {**recorder([611, 7], steering=True, max_new_tokens=LONG), "rid": f"to abort {slow}"}

    with slowed(processes[slow]), ThreadPoolExecutor(2) as pool:
        beside = pool.submit(both.at_once, [*neighbours, *failing, REFUSED])
        ended = pool.submit(both.stream, "/generate", aborted)
        while len(both.decode.records("edit", tag=tag(aborted))) < 5:
            time.sleep(0.1)
        both.decode.post("/abort_request", {"rid": aborted["rid"]})
        assert ended.result().finish_reason["type"] == "abort"
    *replies, raised, late, refused = beside.result()

    assert [raised.status, late.status, refused.status] == [500, 500, 400]
    for request, reply in zip(neighbours, replies, strict=True):
        assert reply.status == 200, reply.body
        params = request["sampling_params"]["custom_params"]
        oracle.check(request["input_ids"], reply.output_ids, rule(Recorder, params))
    seen_alike(wide, *neighbours, aborted)
