"""Under every schedule, a processor sees each token once, in order, and acts on time."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

import pytest

from examples.own_processor import AtMost
from sglang_lp import builtins
from support.models.tiny_model import EOS, FREQUENT, word
from support.oracles.greedy import free, rule
from support.processors.eager import CHAIN, CHOICE, START, THINKING
from support.processors.recording import Recorder, steer
from support.servers.asking import body, recorder, tag
from support.servers.configurations import PLUGIN, on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
on_each_server = on_servers(*PLUGIN)

#: Tokens that no server comes to in the two seconds that SGLang waits before it ends a request
#: whose client is gone.
LONG = 2000
#: Every built-in and one of one's own, with settings under which it acts early and often.
CASES = [
    (AtMost, {"token_ids": [*FREQUENT], "at_most": 2}),
    (builtins.AllowedTokensLogitProcessor, {"token_ids": [*range(2, 200)]}),
    (builtins.BadWordsLogitProcessor, {"token_ids": [*FREQUENT], "lengths": [2, 1, 2]}),
    CHAIN,
    CHOICE,
    (builtins.DRYLogitProcessor, {"dry_multiplier": 4.0, "dry_allowed_length": 1}),
    (builtins.DisallowedTokensLogitsProcessor, {"token_ids": [*FREQUENT]}),
    (builtins.ForcedSequenceLogitProcessor, {"token_ids": [*range(300, 310)]}),
    (builtins.ForcedSequenceLogitProcessor, {"token_ids": [301, 301, 301], "eos_token_ids": [EOS]}),
    (
        builtins.ForcedWordsLogitProcessor,
        {
            "token_ids": [300, 301, 302, *FREQUENT[:2], 303],
            "lengths": [3, 2, 1],
            "eos_token_ids": [EOS, FREQUENT[2]],
            "within_tokens": 20,
        },
    ),
    (
        builtins.LocateAnythingBoxGrammarLogitProcessor,
        {
            "box_start_token_id": FREQUENT[0],
            "box_end_token_id": 300,
            "coord_start_token_id": 301,
            "coord_end_token_id": 400,
            "none_token_id": 401,
        },
    ),
    (builtins.CiteFromPromptLogitProcessor, {"bias": 4.0, "eos_token_ids": [EOS]}),
    (builtins.GenLengthLogitProcessor, {"bias": 2.0, "eos_token_ids": [EOS, FREQUENT[0]]}),
    (builtins.LoopBreakerLogitProcessor, {"max_pattern_size": 3, "min_count": 2}),
    (builtins.MinLengthLogitProcessor, {"min_tokens": 20, "eos_token_ids": [EOS, *FREQUENT]}),
    (builtins.DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 1, "window_size": 20}),
    (
        builtins.DeepseekOCRNoRepeatNGramLogitProcessor,
        {"ngram_size": 2, "window_size": 100, "whitelist_token_ids": [FREQUENT[0]]},
    ),
    (
        builtins.ScheduledBiasLogitProcessor,
        {"token_ids": [300], "bias": 9.0, "final_bias": -9.0, "start": 2, "end": 20},
    ),
    (builtins.TemperatureLogitProcessor, {"temperature": 0.2}),
    (builtins.TopNSigmaLogitProcessor, {"top_n_sigma": 0.7}),
    (builtins.ThinkingBudgetLogitProcessor, {"thinking_budget": 0, **THINKING}),
    (builtins.ThinkingBudgetLogitProcessor, {"thinking_budget": 1, **THINKING}),
    (builtins.ThinkingBudgetLogitProcessor, {"thinking_budget": 5, **THINKING}),
    (
        builtins.TriggerPhraseLogitProcessor,
        {"trigger_token_ids": [START], "phrase_token_ids": [300, 301], "max_times": 3},
    ),
    (builtins.WatermarkLogitProcessor, {}),
]


def a_prompt(rng, longest=60):
    """Return a prompt; some open a thinking block, or hold what the n-gram window looks for."""
    prompt = [rng.randrange(2, 1024) for _ in range(rng.randint(1, longest))]
    if rng.random() < 0.5:
        prompt.insert(rng.randint(1, len(prompt)), START)
    return prompt


def mixed(rng, count):
    """Return requests of every kind, without a processor among them, of different lengths."""
    kinds = [*CASES, None, "observing", "steering"]
    rng.shuffle(kinds)
    bodies = []
    for kind in islice(cycle(kinds), count):
        prompt, length = a_prompt(rng), rng.randint(1, 60)
        if kind is None:
            bodies.append(body(prompt, max_new_tokens=length))
        elif isinstance(kind, str):
            bodies.append(recorder(prompt, steering=kind == "steering", max_new_tokens=length))
        else:
            bodies.append(body(prompt, *kind, max_new_tokens=length))
    return bodies


def rule_of(request):
    if "custom_logit_processor" not in request:
        return free
    (processor,) = (
        cls
        for cls in {Recorder, *(processor for processor, _ in CASES)}
        if cls.to_str() == request["custom_logit_processor"]
    )
    return rule(processor, request["sampling_params"]["custom_params"])


def seen_by(server, request, output_ids):
    """Check what a recorder wrote down about one request with one answer."""
    lines = server.records("edit", tag=tag(request))
    assert len({line["serial"] for line in lines}) == 1, "its state was made more than once"
    check_lines(server, lines, output_ids)


def along(server, lines, output_ids):
    """Leave out what was seen at drafted tokens that did not come."""
    if "speculative_algorithm" not in server.arguments:
        return lines
    for line in lines:
        assert line["exact"]
        assert line["output_ids"] == line["fed"]
        assert line["position"] == len(line["fed"])
    return [line for line in lines if line["fed"] == output_ids[: line["position"]]]


def check_lines(server, lines, output_ids):
    lines = along(server, lines, output_ids)
    for line in lines:
        position = line["position"]
        assert line["exact"]
        # Behind the end lies at most the step that was under way when the end was seen.
        assert position <= len(output_ids)
        assert line["output_ids"] == line["fed"] == output_ids[:position]
    positions = [line["position"] for line in lines]
    assert [*dict.fromkeys(positions)] == [*range(max(positions) + 1)]
    assert max(positions) >= len(output_ids) - 1


def check(server, oracle, request, reply):
    """Check one answer token for token, and the recorder's tokens if the request has a recorder."""
    assert reply.status == 200, reply.body
    assert reply.finish_reason["type"] in ("length", "stop")
    oracle.check(request["input_ids"], reply.output_ids, rule_of(request))
    if "tag" in request["sampling_params"].get("custom_params", ()):
        seen_by(server, request, reply.output_ids)


def test_every_builtin_is_among_the_cases():
    # Words and the letters of scripts need a tokenizer: tests/live/test_texts.py.
    texts = builtins.BiasWordsLogitProcessor, builtins.ScriptLogitProcessor
    elsewhere = (
        *texts,
        builtins.CatalogueLogitProcessor,  # tests/live/test_catalogues.py
        builtins.ToolCallLimitLogitProcessor,  # tests/live/test_reasoning.py
    )
    covered = (*(processor for processor, _ in CASES), *elsewhere)
    missing = [
        name for name in builtins.__all__ if not issubclass(getattr(builtins, name), covered)
    ]
    assert not missing


@on_each_server
def test_one_request_alone(server, oracle):
    rng = random.Random(1)
    for processor, params in CASES:
        request = body(a_prompt(rng), processor, params)
        check(server, oracle, request, server.post("/generate", request))
    for steering in (False, True):
        request = recorder(a_prompt(rng), steering=steering)
        check(server, oracle, request, server.post("/generate", request))


@on_each_server
@pytest.mark.parametrize("stagger", [0, 0.02])
def test_thirty_two_requests_of_all_kinds_that_join_and_leave(server, oracle, stagger):
    bodies = mixed(random.Random(32), 32)
    for request, reply in zip(bodies, server.at_once(bodies, stagger), strict=True):
        check(server, oracle, request, reply)


@on_each_server
def test_four_answers_to_one_prompt(server, oracle):
    prompt = [*range(400, 420)]
    # Four greedy answers are the same one, so these are sampled, and forced half of the time.
    request = recorder(prompt, steering=True, n=4, temperature=1.0)
    replies = server.post("/generate", request).body
    assert len(replies) == 4
    # Two processes that were given the same seed may give the same two answers.
    answers = [*map(list, {tuple(reply["output_ids"]) for reply in replies})]
    assert len(answers) >= 2
    for answer in answers:
        steered = [steer(answer[:at]) for at in range(len(answer))]
        assert all(forced in (None, token) for forced, token in zip(steered, answer, strict=True))
    lines = server.records("edit", tag=tag(request))
    # Each process counts its rows by itself.
    rows = {(line["pid"], line["serial"]) for line in lines}
    for row in rows:
        own = [line for line in lines if (line["pid"], line["serial"]) == row]
        # The answer that it came to: all others part from it.
        seen = [line["output_ids"] for line in own]
        answer = max(answers, key=lambda answer: sum(answer[: len(one)] == one for one in seen))
        check_lines(server, own, answer)


@on_each_server
def test_a_request_ends_by_length_eos_and_stop_string(server, oracle):
    prompt = [*range(500, 540)]
    by_length = recorder(prompt, steering=True)
    by_eos = body(
        prompt,
        builtins.ForcedSequenceLogitProcessor,
        {"token_ids": [600, 601], "eos_token_ids": [EOS]},
    )
    by_string = recorder(prompt, steering=True)
    first = server.post("/generate", by_length)
    stop_at = next(at for at in range(5, 40) if first.output_ids[at] >= 258)
    by_string["sampling_params"]["stop"] = word(first.output_ids[stop_at])
    replies = [first, *server.at_once([by_eos, by_string])]
    reasons = [reply.finish_reason for reply in replies]
    assert reasons[0] == {"type": "length", "length": 40}
    assert reasons[1] == {"type": "stop", "matched": EOS}
    assert reasons[2] == {"type": "stop", "matched": word(first.output_ids[stop_at])}
    for request, reply in zip((by_length, by_eos, by_string), replies, strict=True):
        check(server, oracle, request, reply)


@on_each_server
def test_clients_that_hang_up_do_not_disturb_the_others(server, oracle):
    bodies = mixed(random.Random(7), 12)
    leavers = [recorder([700 + i], steering=True, max_new_tokens=LONG) for i in range(4)]
    with ThreadPoolExecutor(16) as pool:
        left = [
            pool.submit(server.stream, "/generate", leaver, leave_after=5) for leaver in leavers
        ]
        replies = [*pool.map(lambda request: server.post("/generate", request), bodies)]
        received = [future.result().body["output_ids"] for future in left]
    for request, reply in zip(bodies, replies, strict=True):
        check(server, oracle, request, reply)
    for leaver, output_ids in zip(leavers, received, strict=True):
        oracle.check(leaver["input_ids"], output_ids, rule_of(leaver))
        lines = until_quiet(server, tag(leaver))
        longest = max(lines, key=lambda line: line["position"])["output_ids"]
        assert len(longest) < LONG
        if "speculative_algorithm" in server.arguments:
            # What came after they left was not told apart from drafts.
            lines = [line for line in lines if line["position"] < len(output_ids)]
            longest = output_ids
        assert longest[: len(output_ids)] == output_ids
        check_lines(server, lines, longest)


def until_quiet(server, name):
    lines = server.records("edit", tag=name)
    while True:
        time.sleep(1)
        later = server.records("edit", tag=name)
        if len(later) == len(lines):
            return later
        lines = later


@on_each_server
def test_requests_were_retracted_where_memory_is_short(server):
    retractions = server.log_text().count("Retract requests")
    assert (retractions > 0) == (server.arguments["max_total_tokens"] < 1000)


@on_each_server
def test_all_requests_are_served_by_as_many_processes_as_asked_for(server):
    processes = {line["pid"] for line in server.records("edit")}
    assert len(processes) == server.arguments.get("dp_size", 1)
