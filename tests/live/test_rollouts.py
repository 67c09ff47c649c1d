"""Masks and logprobs that a trainer reads from an answer, compared with the model's own logits."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
import torch

from sglang_lp import builtins
from sglang_lp.client import attach, loss_mask, raw_logprobs, resume
from support.models.tiny_model import EOS, FREQUENT, tokenizer
from support.oracles.greedy import TOLERANCE, free, rule
from support.processors.eager import THINKING
from support.servers.asking import body
from support.servers.configurations import on_servers
from support.settings import environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
on_the_default_server = on_servers("default")
with_and_without_drafts = on_servers("default", "ngram trees, mixed chunks")

ROOT = Path(__file__).parents[2]
PROMPT = [5, 6, 7, 296, THINKING["thinking_start_token_id"]]
TOKENS = 24
FORCED = [*range(300, 310)]

#: They act early and often in an answer of 24 tokens.
EXCLUDING = [
    attach("AllowedTokensLogitProcessor", token_ids=[*range(2, 200), *FREQUENT]),
    attach("BadWordsLogitProcessor", token_ids=[*FREQUENT], lengths=[2, 1, 2]),
    attach("CatalogueLogitProcessor", catalogue="items", max_items=3, ends_answer=False),
    attach("ChoiceLogitProcessor", token_ids=[300, 301, 302], lengths=[2, 1], eos_token_ids=[EOS]),
    attach("DisallowedTokensLogitsProcessor", token_ids=[*FREQUENT]),
    attach("ForcedSequenceLogitProcessor", token_ids=FORCED),
    attach(
        "ForcedWordsLogitProcessor",
        token_ids=[300, 301, 302, 303],
        lengths=[2, 2],
        eos_token_ids=[EOS, FREQUENT[2]],
        within_tokens=20,
    ),
    attach(
        "LocateAnythingBoxGrammarLogitProcessor",
        box_start_token_id=FREQUENT[0],
        box_end_token_id=300,
        coord_start_token_id=301,
        coord_end_token_id=400,
        none_token_id=401,
    ),
    attach("LoopBreakerLogitProcessor", max_pattern_size=3, min_count=2),
    attach("MinLengthLogitProcessor", min_tokens=20, eos_token_ids=[EOS, *FREQUENT]),
    attach("DeepseekOCRNoRepeatNGramLogitProcessor", ngram_size=1, window_size=20),
    attach("DeepseekOCRNoRepeatNGramLogitProcessor", ngram_size=1, window_size=9, scope="output"),
    attach("ScheduledBiasLogitProcessor", token_ids=[*FREQUENT], start=2, end=20),
    attach("ScriptLogitProcessor", scripts=["Latin"], mode="ban"),
    attach("ThinkingBudgetLogitProcessor", thinking_budget=7, **THINKING),
    attach("TopNSigmaLogitProcessor", top_n_sigma=0.4),
    attach("TriggerPhraseLogitProcessor", trigger_token_ids=[386], phrase_token_ids=[300, 301]),
    attach(
        [
            attach("ThinkingBudgetLogitProcessor", thinking_budget=5, **THINKING),
            attach("DisallowedTokensLogitsProcessor", token_ids=[FREQUENT[3]]),
        ]
    ),
]
#: Processors that also change the logits of the remaining tokens.
OTHERS = [
    attach("BiasWordsLogitProcessor", words=[" and", "ing"], weights=[4.0, 2.0], max_times=3),
    attach(
        "ToolCallLimitLogitProcessor",
        max_tool_calls=1,
        tool_call_starts=["<tool_call>"],
        tool_call_end="</tool_call>",
        eos_token_ids=[EOS],
    ),
    attach("CiteFromPromptLogitProcessor", bias=4.0, eos_token_ids=[EOS]),
    attach("DRYLogitProcessor", dry_multiplier=4.0, dry_allowed_length=1),
    attach("GenLengthLogitProcessor", bias=2.0, eos_token_ids=[EOS, FREQUENT[0]]),
    attach("ScheduledBiasLogitProcessor", token_ids=[300], bias=9, final_bias=-9, start=2, end=20),
    attach("TemperatureLogitProcessor", temperature=0.3),
    attach("TriggerPhraseLogitProcessor", before_token_ids=[386], phrase_token_ids=[300, 301]),
    attach("WatermarkLogitProcessor"),
]
EVERY = [*EXCLUDING, *OTHERS]


def asked(attachment, **more):
    sampling = more.pop("sampling", {})
    return attachment.generate_body(
        {**body(PROMPT, **{"max_new_tokens": TOKENS, **sampling}), **more}
    )


def answers(server, requests):
    replies = server.at_once(requests)
    assert [reply.status for reply in replies] == [200] * len(replies), [
        reply.body for reply in replies if reply.status != 200
    ]
    return replies


def rows_of(oracle, attachment, output_ids, temperature=0.0):
    """Yield the true row of each token as the processor leaves it, and the model's own."""
    rewrite = free
    if attachment:
        processor, params = attachment.processor, attachment.custom_params
        rewrite = rule(processor, params, temperature=temperature)
    for position, own in enumerate(oracle.logits(PROMPT, output_ids)):
        yield rewrite([*PROMPT], [*output_ids[:position]], own.clone()) / (temperature or 1.0), own


def test_the_training_loop_of_the_page_has_ratios_of_1(tiny, tmp_path):
    picture = tmp_path / "ratio.svg"
    run = subprocess.run(
        [
            *(sys.executable, "examples/rollouts.py", tiny, "--plot", picture),
            *("--steps", "2", "--answers", "4", "--tokens", "20", "--judged", "16", "--seed", "7"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment({}),
    )

    steps = re.findall(
        r"^step \d: reward [\d.]+, ratio off by (\S+), else (\S+)$", run.stdout, re.MULTILINE
    )
    assert len(steps) == 2, run.stdout + run.stderr
    for with_masks, without in steps:
        assert float(with_masks) < TOLERANCE
        assert float(without) > 0.5
    assert "\n1 steps left, " in run.stdout
    judged = r"^reward 0\.\d+ ± 0\.\d+ before, 0\.\d+ ± 0\.\d+ after, of 16 answers each$"
    assert re.search(judged, run.stdout, re.MULTILINE)
    assert picture.read_text().startswith("<?xml")


def test_every_built_in_is_among_those_that_are_tested():
    tested = {one.processor for one in EVERY}
    budgets = builtins.ThinkingBudgetLogitProcessor
    missing = {
        name
        for name in builtins.__all__
        if not issubclass(cls := getattr(builtins, name), budgets) and cls not in tested
    }
    assert missing == set()


# Sampling masks


@on_the_default_server
@pytest.mark.parametrize("sampling", [{"temperature": 1.3, "top_k": 12}, {"temperature": 0}])
def test_a_mask_holds_the_tokens_that_were_possible(server, oracle, sampling):
    requests = [asked(one, sampling=sampling, return_sampling_mask=True) for one in EXCLUDING]
    replies = answers(server, requests)

    for attachment, reply in zip(EXCLUDING, replies, strict=True):
        meta = reply.body["meta_info"]
        masks, chosen = meta["output_token_sampling_mask"], meta["output_token_sampling_logprobs"]
        rows = rows_of(oracle, attachment, reply.output_ids, sampling["temperature"])
        assert len(masks) == len(reply.output_ids)
        for mask, logprob, token_id, (row, _) in zip(
            masks, chosen, reply.output_ids, rows, strict=True
        ):
            count = min(sampling.get("top_k", 1), int(row.isfinite().sum()))
            last = row.topk(count).values[-1]
            assert len(mask) == count, attachment
            assert row[mask].min() >= last - TOLERANCE
            expected = row[mask].log_softmax(-1)[mask.index(token_id)]
            assert logprob == pytest.approx(float(expected), abs=TOLERANCE)


@on_servers("dflash")
def test_a_mask_of_an_accepted_draft_holds_the_token_that_was_possible(server, oracle):
    asking = {"sampling": {"temperature": 0}, "return_sampling_mask": True}
    replies = answers(server, [asked(one, **asking) for one in EXCLUDING])

    for attachment, reply in zip(EXCLUDING, replies, strict=True):
        masks = reply.body["meta_info"]["output_token_sampling_mask"]
        assert masks == [[token_id] for token_id in reply.output_ids]
        oracle.check(PROMPT, reply.output_ids, rule(attachment.processor, attachment.custom_params))


@on_servers("ngram trees, mixed chunks")
def test_a_mask_is_refused_where_sglang_has_none(server):
    reply = server.post("/generate", asked(EXCLUDING[0], return_sampling_mask=True))

    assert reply.status == 400
    assert "return_sampling_mask is not supported with speculative decoding" in str(reply.body)


# Logprobs


def least(row):
    """Return a row of logprobs as JSON has it: what was excluded has the least float."""
    return row.log_softmax(-1).clamp(min=torch.finfo(torch.float32).min)


@with_and_without_drafts
def test_logprobs_are_of_the_edited_logits(server, oracle):
    more = {"return_logprob": True, "top_logprobs_num": 3, "token_ids_logprob": [300, FREQUENT[0]]}
    replies = answers(server, [asked(one, **more) for one in EVERY])

    for attachment, reply in zip(EVERY, replies, strict=True):
        meta = reply.body["meta_info"]
        for position, (row, _) in enumerate(rows_of(oracle, attachment, reply.output_ids)):
            expected = least(row)
            told = [
                meta["output_token_logprobs"][position],
                *meta["output_top_logprobs"][position],
                *meta["output_token_ids_logprobs"][position],
            ]
            for logprob, token_id, *_ in told:
                assert logprob == pytest.approx(float(expected[token_id]), abs=TOLERANCE, rel=1e-6)
            best = [logprob for logprob, *_ in meta["output_top_logprobs"][position]]
            assert best == pytest.approx(expected.topk(3).values.tolist(), abs=TOLERANCE, rel=1e-6)


@on_the_default_server
@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.7}, {"temperature": 1.0, "n": 2}, {"temperature": 1.4, "top_p": 0.9}],
)
def test_logprobs_are_at_the_temperature_of_the_request(server, oracle, sampling):
    requests = [asked(one, sampling=sampling, return_logprob=True) for one in EVERY]
    for attachment, reply in zip(EVERY, answers(server, requests), strict=True):
        copies = reply.body if isinstance(reply.body, list) else [reply.body]
        for copy in copies:
            rows = rows_of(oracle, attachment, copy["output_ids"], sampling["temperature"])
            told = copy["meta_info"]["output_token_logprobs"]
            for (logprob, token_id, *_), (row, _) in zip(told, rows, strict=True):
                assert logprob == pytest.approx(float(least(row)[token_id]), abs=TOLERANCE)


@on_servers("default", "no overlap, no radix cache")
def test_logprobs_are_of_logits_with_penalties_too(server, oracle):
    ban = attach("DisallowedTokensLogitsProcessor", token_ids=[*FREQUENT])
    sampling = {"temperature": 1.0, "frequency_penalty": 1.5}
    (reply,) = answers(server, [raw_asked(ban, sampling=sampling)])

    # SGLang reads the newest token of an answer on the host, and in a step that overlaps with the
    # one before it is not there yet; before the first token it takes the prompt's last one.
    late = 0 if "disable_overlap_schedule" in server.arguments else 1
    counted = [PROMPT[-1]] * late + reply.output_ids
    told = reply.body["meta_info"]["output_token_logprobs"]
    raw = raw_logprobs(reply.body)
    for position, (_, own) in enumerate(rows_of(oracle, None, reply.output_ids)):
        for token_id in counted[:position]:
            own[token_id] -= 1.5
        logprob, token_id, *_ = told[position]
        assert raw[position] == pytest.approx(float(own.log_softmax(-1)[token_id]), abs=TOLERANCE)
        own[[*FREQUENT]] = -math.inf
        assert logprob == pytest.approx(float(least(own)[token_id]), abs=TOLERANCE)


@on_the_default_server
def test_logprobs_are_of_logits_that_a_grammar_masked_too(server, oracle):
    digits = tokenizer().encode("0123456789").ids
    ban = attach("DisallowedTokensLogitsProcessor", token_ids=digits[:3])
    sampling = {"temperature": 1.0, "regex": "[0-9]{8}"}
    (reply,) = answers(server, [asked(ban, sampling=sampling, return_logprob=True)])

    told = reply.body["meta_info"]["output_token_logprobs"]
    assert len(told) >= 8
    for position, (_, own) in enumerate(rows_of(oracle, None, reply.output_ids[:8])):
        row = torch.full_like(own, -math.inf)
        row[digits[3:]] = own[digits[3:]]
        logprob, token_id, *_ = told[position]
        assert logprob == pytest.approx(float(least(row)[token_id]), abs=TOLERANCE)


@on_the_default_server
def test_the_prompts_own_logprobs_are_the_models(server, oracle):
    forced = attach("ForcedSequenceLogitProcessor", token_ids=FORCED)
    (reply,) = answers(server, [asked(forced)])
    scoring = body([*PROMPT, *reply.output_ids], max_new_tokens=0)
    more = {"return_logprob": True, "logprob_start_len": len(PROMPT) - 1}
    (scored,) = answers(server, [{**scoring, **more}])

    told = scored.body["meta_info"]["input_token_logprobs"][1:]
    rows = rows_of(oracle, None, reply.output_ids)
    for (logprob, token_id, *_), (_, own) in zip(told, rows, strict=True):
        assert logprob == pytest.approx(float(least(own)[token_id]), abs=TOLERANCE)


# The model's own logprobs


def raw_asked(attachment, **more):
    request = asked(attachment, return_logprob=True, **more)
    request["sampling_params"]["custom_params"]["raw_logprobs"] = True
    return request


def check_raw(oracle, answer, temperature=1.0):
    """Check what an answer says of the model's own logprobs; return at how many positions."""
    report = answer["meta_info"]["sglang_lp"]
    spans = [*report["forced_at"], *report["edited"]]
    told = [position for position, _ in report["raw_logprobs"]]
    assert told == sorted(at for start, stop in spans for at in range(start, stop))
    logprobs = raw_logprobs(answer)
    for position, own in enumerate(oracle.logits(PROMPT, answer["output_ids"])):
        expected = (own / temperature).log_softmax(-1)[answer["output_ids"][position]]
        assert logprobs[position] == pytest.approx(float(expected), abs=TOLERANCE)
    return len(told)


@on_the_default_server
def test_raw_logprobs_are_of_what_a_grammar_left(server, oracle):
    digits = tokenizer().encode("0123456789").ids
    ban = attach("DisallowedTokensLogitsProcessor", token_ids=digits[:3])
    sampling = {"temperature": 1.0, "regex": "[0-9]{8}"}
    (reply,) = answers(server, [raw_asked(ban, sampling=sampling)])

    told = raw_logprobs(reply.body)
    for position, (_, own) in enumerate(rows_of(oracle, None, reply.output_ids[:8])):
        row = torch.full_like(own, -math.inf)
        row[digits] = own[digits]
        token_id = reply.output_ids[position]
        assert told[position] == pytest.approx(float(least(row)[token_id]), abs=TOLERANCE)


@with_and_without_drafts
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.7, "n": 2}])
def test_raw_logprobs_are_the_models_own(server, oracle, sampling):
    replies = answers(server, [raw_asked(one, sampling=sampling) for one in EVERY])

    edited = 0
    for reply in replies:
        for copy in reply.body if isinstance(reply.body, list) else [reply.body]:
            edited += check_raw(oracle, copy, sampling["temperature"] or 1.0)
    assert edited > 5 * len(EVERY)


@on_the_default_server
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("raw", "more", "expected"),
    [
        (True, {"return_logprob": False}, "raw_logprobs: expected return_logprob as well"),
        (1, {"return_logprob": True}, "raw_logprobs: expected true or false, got 1"),
    ],
)
def test_raw_logprobs_go_with_logprobs_alone(server, stream, raw, more, expected):
    request = asked(EVERY[0], **more)
    request["sampling_params"]["custom_params"]["raw_logprobs"] = raw
    reply = (server.stream if stream else server.post)("/generate", request)

    assert reply.status == 400
    assert expected in str(reply.body)


# What was forced


@with_and_without_drafts
def test_the_report_tells_forced_positions_from_edited_ones(server):
    replies = answers(server, [asked(one) for one in EXCLUDING[5:7]])
    forced, report = replies[0], replies[0].body["meta_info"]["sglang_lp"]

    assert report["forced_at"] == [[0, len(FORCED)]]
    assert (report["edited"], report["truncated"]) == ([], None)
    assert loss_mask(forced.body) == [0] * len(FORCED) + [1] * (TOKENS - len(FORCED))
    mask = loss_mask(replies[1].body)
    for at, token_id in enumerate(replies[1].output_ids):
        # Nothing but force brings the model to these.
        assert mask[at] == (token_id not in {300, 301, 302, 303})


@on_servers("two stages")
@pytest.mark.parametrize("stream", [False, True])
def test_the_report_names_the_positions_whose_logits_changed(server, oracle, stream):
    requests = [asked(one) for one in EVERY]
    if stream:
        with ThreadPoolExecutor(len(requests)) as pool:
            replies = [*pool.map(lambda one: server.stream("/generate", one), requests)]
    else:
        replies = answers(server, requests)
    for attachment, reply in zip(EVERY, replies, strict=True):
        report, said = reply.body["meta_info"]["sglang_lp"], [False] * len(reply.output_ids)
        for since, until in [*report["forced_at"], *report["edited"]]:
            said[since:until] = [True] * (until - since)
        rows = rows_of(oracle, attachment, reply.output_ids)
        assert said == [not torch.equal(edited, own) for edited, own in rows], attachment.processor


# Resumed answers


@with_and_without_drafts
def test_an_answer_that_was_cut_anywhere_goes_on_as_if_it_had_not_been(server, oracle):
    whole = answers(server, [asked(one) for one in EVERY])
    cuts, requests = [], []
    for (attachment, reply), cut in product(zip(EVERY, whole, strict=True), range(1, TOKENS)):
        if cut < len(reply.output_ids):
            part = {"output_ids": reply.output_ids[:cut]}
            cuts.append((attachment, part["output_ids"]))
            requests.append(resume(attachment, body(PROMPT, max_new_tokens=TOKENS), part))
    checked = set()
    for start in range(0, len(requests), 24):
        batch = slice(start, start + 24)
        replies = answers(server, requests[batch])
        for (attachment, so_far), reply in zip(cuts[batch], replies, strict=True):
            answer = (*so_far, *reply.output_ids)
            if (id(attachment), answer) not in checked:  # most are equal, and a check takes long
                checked.add((id(attachment), answer))
                oracle.check(PROMPT, answer, rule(attachment.processor, attachment.custom_params))
            report = reply.body["meta_info"]["sglang_lp"]
            new = len(reply.output_ids)
            spans = [*report["forced_at"], *report["edited"]]
            assert all(0 <= since < until <= new for since, until in spans)
            if attachment.processor is builtins.ForcedSequenceLogitProcessor:
                rest = len(FORCED) - len(so_far)
                assert report["forced_at"] == ([[0, rest]] if rest > 0 else [])


@on_the_default_server
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [len(PROMPT) + 1, -1, "all", True])
def test_no_more_than_the_prompt_can_be_resumed(server, stream, count):
    request = asked(EVERY[0])
    request["sampling_params"]["custom_params"]["resumed_tokens"] = count
    reply = (server.stream if stream else server.post)("/generate", request)

    assert reply.status == 400
    assert f"resumed_tokens: expected a whole number from 0 to {len(PROMPT)}" in str(reply.body)


@on_servers("no overlap, no radix cache")
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_would_be_cut_off_its_prompt_is_not_resumed(server, stream):
    long = asked(BAN, sampling={"max_new_tokens": 2})
    long["input_ids"] = PROMPT * 2_000
    assert stream or server.post("/generate", long).status == 200  # and cut by SGLang
    long["sampling_params"]["custom_params"]["resumed_tokens"] = 9
    reply = (server.stream if stream else server.post)("/generate", long)

    assert reply.status == 400
    assert "resumed_tokens: expected a prompt of fewer than" in str(reply.body)


# Operations


BAN, BUDGET = (
    next(one for one in EXCLUDING if one.processor.__name__.startswith(name))
    for name in ("Disallowed", "ThinkingBudget")
)


@on_the_default_server
@pytest.mark.parametrize("attachment", [BAN, BUDGET])
def test_every_copy_follows_the_rules(server, oracle, attachment):
    (reply,) = answers(server, [asked(attachment, sampling={"temperature": 1.0, "n": 8})])

    assert len(reply.body) == 8
    for copy in reply.body:
        rows = rows_of(oracle, attachment, copy["output_ids"])
        for token_id, (row, _) in zip(copy["output_ids"], rows, strict=True):
            assert row[token_id] > -math.inf


ABORTS = {
    "abort_all": ("/abort_request", {"rid": "", "abort_all": True}),
    "pause": ("/pause_generation", {"mode": "abort"}),
}


@with_and_without_drafts
@pytest.mark.parametrize("how", ABORTS)
def test_an_aborted_answer_comes_with_its_report_and_is_resumed(server, oracle, how):
    request = asked(BAN, sampling={"max_new_tokens": 3000, "ignore_eos": True})
    output = []
    for delay in (0.5, 1.0, 2.0, 4.0):  # until it is caught in the middle
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(server.post, "/generate", request)
            time.sleep(delay)
            server.post(*ABORTS[how])
            part = coming.result()
        server.post("/continue_generation", {})
        assert part.status == 200, part.body
        output = part.output_ids
        if output:
            break

    assert part.finish_reason["type"] == "abort"
    report = part.body["meta_info"]["sglang_lp"]
    assert (report["forced_at"], report["edited"]) == ([], [[0, len(output)]])
    rest = resume(BAN, body(PROMPT, max_new_tokens=len(output) + 9, ignore_eos=True), part.body)
    (reply,) = answers(server, [rest])
    assert len(reply.output_ids) == 9
    oracle.check(PROMPT, [*output, *reply.output_ids], rule(BAN.processor, BAN.custom_params))
