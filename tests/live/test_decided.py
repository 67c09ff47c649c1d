"""The operator's decisions hold for real clients, on every endpoint and in every form."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import version

import anthropic
import httpx
import openai
import orjson
import pytest

from sglang_lp import cli
from sglang_lp.builtins import AllowedTokensLogitProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.server.gate.metrics import NAMES
from sglang_lp.wire.names import HEADER, LIST_PATH, POLICY_HEADER
from support.models.tiny_model import EOS, FREQUENT
from support.servers.asking import openai_client
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("decided")]

START, END = 4, 5
IDS = {"thinking_start_token_id": START, "thinking_end_token_id": END}
THINK, DRY = "ThinkingBudgetLogitProcessor", "DRYLogitProcessor"
MESSAGES = [{"role": "user", "content": "#"}]
DEFAULT, CEILING = 12, 20
#: For Anthropic's client, which has no such argument any more.
GREEDY = {"extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def client(server):
    with openai_client(server.url) as opened:
        yield opened


@pytest.fixture(scope="module")
def messages(server):
    transport = anthropic.DefaultHttpxClient(trust_env=False)
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, http_client=transport
    ) as opened:
        yield opened.messages


def generate(payload=None, params=None, **fields):
    sampling = {"temperature": 0, "max_new_tokens": 48}
    if params is not None:
        sampling["custom_params"] = params
    return {
        "input_ids": [START],
        "sampling_params": sampling,
        "custom_logit_processor": payload,
        **fields,
    }


def thought(tokens):
    """Return how many tokens came before the end of thinking: ids, or what they spell."""
    end = END if isinstance(tokens[0], int) else "$"
    assert FREQUENT[0] not in tokens
    assert f" w{FREQUENT[0]}" not in tokens
    return [*tokens].index(end)


def spelled(text):
    """Split an answer into tokens: words of the model, or single characters."""
    return re.findall(r" w\d+|.", text, re.DOTALL)


# Which budget holds


CHAIN = {"chain": [DRY, THINK], **{f"1.{name}": value for name, value in IDS.items()}}
WAYS = {
    "nothing": (generate(), DEFAULT),
    "a bare parameter": (generate(None, {"thinking_budget": 5}), 5),
    "a bare -1": (generate(None, {"thinking_budget": -1}), CEILING),
    "a bare null": (generate(None, {"thinking_budget": None}), DEFAULT),
    "more than the ceiling": (generate(THINK, {**IDS, "thinking_budget": 45}), CEILING),
    "a payload with -1": (
        generate(ThinkingBudgetLogitProcessor.to_str(), {**IDS, "thinking_budget": -1}),
        CEILING,
    ),
    "a payload with null": (generate(THINK, {**IDS, "thinking_budget": None}), DEFAULT),
    "a chain": (generate("ChainLogitProcessor", {**CHAIN, "1.thinking_budget": 45}), CEILING),
    "a chain without a budget": (
        generate("ChainLogitProcessor", {"chain": [DRY]}),
        CEILING,
    ),
    "another processor": (generate(DRY, {}), CEILING),
    "max_thinking_tokens": (generate(max_thinking_tokens=6), 6),
    "both": (generate(None, {"thinking_budget": 5}, max_thinking_tokens=6), 5),
    "a profile": (generate("calm"), 3),
    "a profile with a budget": (generate("calm", {"thinking_budget": 7}), 7),
    "a profile with -1": (generate("calm", {"thinking_budget": -1}), CEILING),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_block_ends_at_the_budget_that_counts(server, way):
    body, budget = WAYS[way]

    reply = server.post("/generate", body)

    assert reply.status == 200, reply.body
    assert thought(reply.output_ids) == budget
    (block, *_) = reply.body["meta_info"]["sglang_lp"]["thinking"]
    assert block == {"tokens": budget, "ended": "budget"}


@pytest.mark.parametrize("way", ["nothing", "a bare -1", "max_thinking_tokens", "a profile"])
def test_a_stream_of_tokens_ends_its_block_at_the_same_one(server, way):
    body, budget = WAYS[way]

    reply = server.stream("/generate", body)

    assert reply.status == 200, reply.body
    assert thought(reply.output_ids) == budget
    assert reply.body["meta_info"]["sglang_lp"]["thinking"][0]["tokens"] == budget
    assert "sglang_lp" not in reply.events[0]["meta_info"]


def test_every_prompt_and_every_copy_has_its_own(server):
    body = generate()
    several = {**body, "input_ids": [[START]] * 3}
    copies = {**body, "sampling_params": {**body["sampling_params"], "n": 2}}

    assert [thought(one["output_ids"]) for one in server.post("/generate", several).body] == [
        12
    ] * 3
    assert [thought(one["output_ids"]) for one in server.post("/generate", copies).body] == [12] * 2


EFFORTS = [(None, DEFAULT), ("low", 4), ("medium", 8), ("high", CEILING)]


@pytest.mark.parametrize(("effort", "budget"), EFFORTS)
def test_an_effort_is_a_budget_in_chats(client, effort, budget):
    request = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 48}
    if effort is not None:
        request["reasoning_effort"] = effort

    whole = client.chat.completions.create(**request, logprobs=True)
    chunks = client.chat.completions.create(**request, stream=True)

    assert thought([one.token for one in whole.choices[0].logprobs.content]) == budget
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert thought(spelled(text)) == budget


@pytest.mark.parametrize(("effort", "budget"), EFFORTS)
def test_an_effort_is_a_budget_in_responses_and_completions(client, effort, budget):
    asked = {} if effort is None else {"reasoning": {"effort": effort}}
    response = client.responses.create(
        model="tiny", input="#", temperature=0, max_output_tokens=50, **asked
    )
    extra = {} if effort is None else {"reasoning_effort": effort}
    completion = client.completions.create(
        model="tiny", prompt="#", temperature=0, max_tokens=48, extra_body=extra
    )

    assert thought(spelled(response.output_text)) == budget
    assert thought(spelled(completion.choices[0].text)) == budget


@pytest.mark.parametrize(("effort", "budget"), EFFORTS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_effort_is_a_budget_for_anthropic_clients(messages, effort, budget, stream):
    config = {} if effort is None else {"output_config": {"effort": effort}}
    request = {"model": "tiny", "messages": MESSAGES, "max_tokens": 48, **GREEDY, **config}

    if stream:
        with messages.stream(**request) as events:
            text = "".join(events.text_stream)
    else:
        text = messages.create(**request).content[0].text

    assert thought(spelled(text)) == budget


def test_a_budget_leaves_room_for_the_answer(client):
    answer = client.chat.completions.create(
        model="tiny",
        messages=MESSAGES,
        temperature=0,
        max_tokens=16,
        logprobs=True,
        reasoning_effort="high",
    )

    tokens = [one.token for one in answer.choices[0].logprobs.content]
    assert thought(tokens) == 16 - 10 - 1
    assert len(tokens) == 16


# What a request cannot get around


@pytest.mark.parametrize(
    ("payload", "params", "why"),
    [
        (THINK, {"thinking_start_token_id": 8, "thinking_end_token_id": 9}, "served model's"),
        (THINK, {**IDS, "thinking_budget": 8, "tool_start_token_ids": [198]}, "served model's"),
        (None, {"tool_start_token_ids": [198]}, "served model's"),
        (THINK, {**IDS, "closing_token_ids": [9] * 21}, "at most 20 on this server"),
        (DRY, {"dry_multiplier": 1.5}, "at most 1 on this server, got 1.5"),
        ("calm", {"token_ids": [720]}, "lets a request set thinking_budget"),
        ("ChainLogitProcessor", {"chain": ["calm"]}, "calm"),
        (None, {"__sglang_lp_budget": 500}, "is SGLang's own"),
        (None, {"__sglang_lp_effort": "high"}, "is SGLang's own"),
        (None, {"thinking_budget": "many"}, "thinking_budget"),
        (None, {"thinking_budgets": 3}, "did you mean 'thinking_budget'?"),
    ],
)
def test_what_is_not_allowed_is_refused_on_every_endpoint(server, client, payload, params, why):
    body = generate(payload, params)
    assert (server.post("/generate", body).status, server.stream("/generate", body).status) == (
        400,
        400,
    )
    assert why in str(server.post("/generate", body).body)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match=re.escape(why)):
            client.chat.completions.create(
                model="tiny",
                messages=MESSAGES,
                stream=stream,
                extra_body={"custom_logit_processor": payload, "custom_params": params},
            )


@pytest.mark.parametrize("written", [{}, {"end": None}, {"end": 40}], ids=str)
def test_a_schedule_without_an_end_gets_the_ceiling(server, written):
    params = {"token_ids": [50], "bias": 1000, **written}

    reply = server.post("/generate", generate("ScheduledBiasLogitProcessor", params))

    assert reply.status == 200, reply.body
    assert [token_id == 50 for token_id in reply.output_ids[:7]] == [True] * 6 + [False]


def test_a_budget_field_beside_a_profile_that_takes_none_is_refused(server):
    reply = server.post("/generate", generate("fixed", max_thinking_tokens=6))

    assert reply.status == 400
    assert "in a field of the request" in str(reply.body)
    assert thought(server.post("/generate", generate("fixed")).output_ids) == 3


@pytest.mark.parametrize("resumed", [0, 1, 5])
@pytest.mark.parametrize("payload", [None, DRY])
def test_a_resumed_answer_does_not_shed_a_minimum(server, payload, resumed):
    params = {"resumed_tokens": resumed}
    whole = generate(payload, params, input_ids=[START, END, 50, 60, 70])
    whole["sampling_params"] |= {"logit_bias": {str(EOS): 100}, "max_new_tokens": 20}
    chat = {"custom_logit_processor": payload, "custom_params": {"resumed_tokens": min(1, resumed)}}
    chat |= {"model": "tiny", "messages": MESSAGES, "max_tokens": 40, "logit_bias": {str(EOS): 100}}

    reply = server.post("/generate", whole)

    assert reply.status == 200, reply.body
    assert [*reply.output_ids].index(EOS) == 8
    answer = server.post("/v1/chat/completions", chat)
    assert answer.status == 200, answer.body
    assert answer.body["usage"]["completion_tokens"] == 9


def test_beams_do_not_shed_what_is_mandatory(server):
    body = generate()
    body["sampling_params"] |= {"beam_width": 2}

    assert server.post("/generate", body).status == 400


CONFLICTS = {
    "at the first token": {"token_ids": [FREQUENT[0]]},
    "later": {"token_ids": [164, 325, FREQUENT[0]]},
}


@pytest.mark.parametrize("conflict", CONFLICTS)
@pytest.mark.parametrize("more", [{}, {"return_logprob": True, "top_logprobs_num": 3}], ids=str)
@pytest.mark.parametrize("copies", [1, 2])
def test_an_answer_that_ends_with_an_error_ends_before_the_banned_token(
    server, conflict, more, copies
):
    body = generate("ForcedSequenceLogitProcessor", CONFLICTS[conflict], **more)
    body["sampling_params"]["n"] = copies

    events = server.stream("/generate", body).events

    last = {event.get("index", 0): event for event in events}
    assert len(last) == copies
    for event in events:
        assert FREQUENT[0] not in event["output_ids"]
        assert f" w{FREQUENT[0]}" not in event["text"]
        told = event["meta_info"].get("output_token_logprobs") or []
        assert FREQUENT[0] not in [token_id for _, token_id, _ in told]
        assert len(event["output_ids"]) == event["meta_info"]["completion_tokens"]
    for event in last.values():
        assert event["meta_info"]["finish_reason"]["type"] == "abort"
        assert event["output_ids"] == CONFLICTS[conflict]["token_ids"][:-1]


def test_a_request_that_contradicts_the_operator_is_told_so_and_nobody_is_paged(server):
    before = scraped(server)
    sent = [
        generate("ForcedSequenceLogitProcessor", CONFLICTS["later"]),
        generate("AllowedTokensLogitProcessor", {"token_ids": [FREQUENT[0]]}),
    ]

    replies = [server.post("/generate", body) for body in sent]

    assert [reply.status for reply in replies] == [400, 400]
    for reply in replies:
        message = reply.body["error"]["message"]
        assert "contradicts what this server's operator decided" in message
        assert str(FREQUENT[0]) not in message
    after = scraped(server)
    grown = {name: after[name] - before.get(name, 0) for name in after if "step" not in name}
    for processor in ("ForcedSequenceLogitProcessor", "AllowedTokensLogitProcessor"):
        assert grown[f'sglang_lp_contradictions_total{{processor="{processor}"}}'] == 1
    assert not any(grown[name] for name in grown if "faults" in name)
    assert len([name for name in after if "faults" in name]) > 40  # each class begins with 0


def test_what_a_request_brings_runs_beside_what_is_mandatory(server):
    params = {"token_ids": [FREQUENT[0], FREQUENT[1], END]}

    reply = server.post("/generate", generate(AllowedTokensLogitProcessor.to_str(), params))

    # Of its three tokens, the policy bans one for all requests, and another ends the thinking.
    assert {*reply.output_ids} == {FREQUENT[1], END}


# What comes back


def test_curl_sees_the_header_and_the_report(server):
    answer = subprocess.run(
        [
            *("curl", "-sS", "-i", "--noproxy", "*", "-H", "Content-Type: application/json"),
            *("-d", orjson.dumps(generate()).decode(), server.url + "/generate"),
        ],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    head, _, body = answer.replace("\r\n", "\n").partition("\n\n")

    assert f"{HEADER}: {THINK}".lower() in head.lower().splitlines()
    report = orjson.loads(body)["meta_info"]["sglang_lp"]
    assert report["processors"] == [THINK]
    assert report["forced"] == 1
    ((start, stop),) = report["forced_at"]
    assert stop == start + 1
    # What every request gets holds from the first token to the last.
    assert report["edited"] == [[0, start], [stop, 48]]


@pytest.mark.parametrize("stream", [False, True])
def test_every_endpoint_names_what_ran_and_not_what_is_mandatory(server, stream):
    asked = {
        "/generate": generate(DRY, {}),
        "/v1/completions": {"prompt": "#", "custom_logit_processor": DRY},
        "/v1/chat/completions": {"messages": MESSAGES, "custom_logit_processor": DRY},
    }
    for path, body in asked.items():
        with httpx.stream(
            "POST",
            server.url + path,
            json={"model": "tiny", "max_tokens": 4, **body, "stream": stream},
            timeout=60,
            trust_env=False,
        ) as response:
            assert response.headers[HEADER] == f"{DRY}, {THINK}"
            response.read()
    for path in ("/v1/messages", "/v1/responses"):
        body = {"model": "tiny", "input": "#", "messages": MESSAGES, "stream": stream}
        limits = {"max_tokens": 20, "max_output_tokens": 20}
        with httpx.stream(
            "POST", server.url + path, json={**body, **limits}, timeout=60, trust_env=False
        ) as response:
            assert response.headers[HEADER] == THINK
            response.read()
    assert HEADER not in httpx.get(server.url + "/v1/models", trust_env=False).headers


def scraped(server):
    """Return every sample of the toolkit's metrics."""
    text = httpx.get(server.url + "/metrics/", trust_env=False).text
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("sglang_lp_")]
    return {name: float(value) for name, _, value in lines}


def test_the_metrics_count_what_was_sent(server):
    before = scraped(server)
    for way in ("nothing", "a profile", "another processor"):
        assert server.post("/generate", WAYS[way][0]).status == 200
    assert server.post("/generate", generate(DRY, {"dry_multiplier": 2.0})).status == 400
    after = scraped(server)

    assert {name.partition("{")[0].removesuffix("_sum") for name in after} >= {*NAMES} - {
        "sglang_lp_contradictions_total",
        *(name for name in NAMES if "beams" in name or "catalogue" in name),
    }
    policy = httpx.get(server.url + "/v1/models", trust_env=False).headers[POLICY_HEADER]
    (info,) = [name for name in after if "info" in name]
    assert after[info] == 1
    assert f'policy="{policy}"' in info
    assert f'version="{version("sglang-lp")}"' in info
    grown = {name: after[name] - before.get(name, 0) for name in after}
    counted = {name: grown[name] for name in grown if grown[name] and "step" not in name}
    assert counted == {
        f'sglang_lp_requests_total{{processor="{THINK}"}}': 3,
        f'sglang_lp_requests_total{{processor="{DRY}"}}': 1,
        'sglang_lp_requests_total{processor="AllowedTokensLogitProcessor"}': 1,
        f'sglang_lp_refusals_total{{gate="admission",processor="{DRY}",'
        'reason="invalid_parameter"}': 1,
        'sglang_lp_thinking_blocks_total{ended="budget"}': 3,
        "sglang_lp_thinking_tokens_total": 12 + 3 + 20,
        "sglang_lp_forced_tokens_total": 3,
    }
    assert grown["sglang_lp_step_seconds_count"] >= 3 * 48 - 3


def test_the_log_says_what_guards_the_server_and_which_request_was_refused(server):
    body = generate(DRY, {"dry_multiplier": 2.0})
    refused = [server.post("/generate", body), server.post("/generate", {**body, "rid": "Bob"})]
    assert [reply.status for reply in refused] == [400, 400]

    log = server.log.read_text()
    assert log.count("guards this server, SGLang ") == 1
    states = re.search(r"hooks: (\d+) of (\d+) live", log)
    assert states
    assert int(states[1]) == int(states[2]) > 40
    made, given = [orjson.loads(one) for one in re.findall(r'\{"event":"refused".*\}', log)][-2:]
    assert re.fullmatch(r"[0-9a-f]{32}", made["rid"])
    assert given["rid"].startswith("sha256:")
    for line in (made, given):
        named = [line[key] for key in ("gate", "endpoint", "processor", "parameter")]
        assert named == ["admission", "/generate", DRY, "dry_multiplier"]


def test_the_log_says_which_request_ended_and_why(server):
    server.post("/generate", generate("AllowedTokensLogitProcessor", {"token_ids": [FREQUENT[0]]}))

    ended = re.findall(r"request ([0-9a-f]{32}) ended: (.*)", server.log.read_text())
    assert "contradicts what this server's operator decided" in ended[-1][1]


def test_what_is_allowed_can_be_asked(server):
    answer = httpx.get(server.url + LIST_PATH, trust_env=False)
    listed = answer.json()

    assert answer.status_code == 200
    assert listed["guarded"]
    assert listed["policy"] == answer.headers[POLICY_HEADER]
    assert DRY in {one["name"] for one in listed["processors"]}
    assert listed["profiles"] == [
        {"name": "calm", "may_set": ["thinking_budget"]},
        {"name": "fixed", "may_set": []},
    ]


def test_a_trace_needs_no_more_than_the_url_of_the_server(server, tmp_path, capsys):
    body = generate("BadWordsLogitProcessor", {"words": [f"w{FREQUENT[1]}"]})
    exchange = [tmp_path / "request.json", tmp_path / "answer.json"]
    for file, content in zip(exchange, (body, server.post("/generate", body).body), strict=True):
        file.write_bytes(orjson.dumps(content))

    arguments = ["--url", server.url, "--format", "json", *map(str, exchange)]
    assert cli.main(["trace", *arguments]) == 0
    found = orjson.loads(capsys.readouterr().out)
    assert found["notes"] == []
    assert any("banned" in edit["words"] for edit in found["edits"])
