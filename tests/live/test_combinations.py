"""Processors together with SGLang's other ways to restrict the next token."""

from __future__ import annotations

import re

import orjson
import pytest

from sglang_lp.builtins import (
    DeepseekOCRNoRepeatNGramLogitProcessor,
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    ScheduledBiasLogitProcessor,
)
from support.processors import recording
from support.servers.asking import body, recorder, tag
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
on_the_default_server = on_servers("default")
#: These have grammars.
with_and_without_drafts = on_servers(
    "default", "eagle chains", "ngram chains, no overlap", "dflash", "dspark"
)

DIGITS = "[0-9]{8}"


@pytest.fixture(scope="module")
def ids(tiny):
    """Token ids of single ASCII characters."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)

    def of(text):
        return tokenizer.encode(text, add_special_tokens=False)

    return of


@with_and_without_drafts
def test_a_ban_and_a_grammar_hold_together(server, ids):
    request = body(
        [5], DisallowedTokensLogitsProcessor, {"token_ids": ids("012345678")}, regex=DIGITS
    )
    assert server.post("/generate", request).body["text"] == "9" * 8


@with_and_without_drafts
def test_a_ban_and_a_json_schema_hold_together(server, ids):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 22, 333]}}, "required": ["a"]}
    request = body(
        [5],
        DisallowedTokensLogitsProcessor,
        {"token_ids": ids("12 \n\t")},
        json_schema=orjson.dumps({**schema, "additionalProperties": False}).decode(),
    )
    reply = server.post("/generate", request)
    assert orjson.loads(reply.body["text"]) == {"a": 333}


@with_and_without_drafts
def test_a_forced_token_that_the_grammar_allows_comes(server, ids):
    request = body([5], ForcedSequenceLogitProcessor, {"token_ids": ids("4711")}, regex=DIGITS)
    text = server.post("/generate", request).body["text"]
    assert text.startswith("4711")
    assert len(text) == 8


@with_and_without_drafts
def test_a_history_is_exact_beside_a_grammar(server):
    request = recorder([5], regex="[0-9]{30}")
    reply = server.post("/generate", request)
    assert re.fullmatch("[0-9]{30}", reply.body["text"])
    lines = server.records("edit", tag=tag(request))
    assert all(line["exact"] and line["fed"] == line["output_ids"] for line in lines)
    came = [line["fed"] for line in lines if line["fed"] == reply.output_ids[: line["position"]]]
    assert len(came) >= 30
    # Nothing else was seen, but for drafts that did not come.
    assert len(came) == len(lines) or "speculative_algorithm" in server.arguments


def check_that_it_ends_itself_alone(server, processor, params, at):
    neighbour = body([6], regex=DIGITS)
    alone = server.post("/generate", neighbour).output_ids
    reply, beside = server.at_once([body([5], processor, params, regex=DIGITS), neighbour])
    assert reply.status == 400
    says = f"no token is left at token {at} by {processor.__name__}: "
    assert reply.body["error"]["message"].startswith(says)
    assert beside.output_ids == alone


@with_and_without_drafts
@pytest.mark.parametrize(
    ("processor", "params", "at"),
    [
        (ForcedSequenceLogitProcessor, {"token_ids": [300]}, 0),
        (DisallowedTokensLogitsProcessor, {"token_ids": [*range(2, 258)]}, 0),
        (recording.ReopensInItsRow, {"at": 0}, 0),
        (recording.ReopensInItsRow, {"at": 4}, 4),
    ],
)
def test_a_token_that_the_grammar_masked_ends_the_request_instead_of_coming(
    server, processor, params, at
):
    check_that_it_ends_itself_alone(server, processor, params, at)


@on_the_default_server
def test_nor_does_it_come_where_whole_rows_are_computed(server):
    check_that_it_ends_itself_alone(server, recording.Reopens, {"at": 0}, 0)


@with_and_without_drafts
def test_an_ngram_ban_that_leaves_the_grammar_no_token_ends_the_request(server):
    request = body(
        [5],
        DeepseekOCRNoRepeatNGramLogitProcessor,
        {"ngram_size": 1, "window_size": 100},
        regex="[01]{8}",
    )
    reply = server.post("/generate", request)
    assert reply.status == 400
    assert reply.body["error"]["message"] == (
        "no token is left at token 2 by DeepseekOCRNoRepeatNGramLogitProcessor: "
        "the logits, the grammar, min_new_tokens or logit_bias mask every token that its "
        "processors leave; change these processors, their parameters or the format that the "
        "request asks for"
    )


def stock_payload():
    from sglang.srt.sampling import custom_logit_processor as stock

    return stock.DisallowedTokensLogitsProcessor.to_str()


@on_the_default_server
@pytest.mark.parametrize("payload", [DisallowedTokensLogitsProcessor.to_str, stock_payload])
def test_a_sampling_mask_comes_with_disallowed_tokens_and_without_them_in_it(server, payload):
    request = body([5], max_new_tokens=4, temperature=1.0, top_k=8)
    request["return_sampling_mask"] = True
    free = server.post("/generate", request)
    banned = sorted({i for mask in masks(free) for i in mask})
    request["custom_logit_processor"] = payload()
    request["sampling_params"]["custom_params"] = {"token_ids": banned}
    reply = server.post("/generate", request)
    assert banned
    assert len(masks(reply)) == 4
    assert not {*banned} & {i for mask in masks(reply) for i in mask}


def masks(reply):
    assert reply.status == 200, reply.body
    return reply.body["meta_info"]["output_token_sampling_mask"]


@on_the_default_server
@pytest.mark.parametrize("stream", [False, True])
def test_a_sampling_mask_is_refused_beside_a_bias(server, stream):
    params = {"token_ids": [300], "bias": 2.0}
    request = body([5], ScheduledBiasLogitProcessor, params, top_k=1)
    reply = server.post("/generate", {**request, "return_sampling_mask": True, "stream": stream})
    assert reply.status == 400
    assert "got ScheduledBiasLogitProcessor, which also changes the relative" in str(reply.body)
