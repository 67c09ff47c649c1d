"""SGLang without the plugin gets drafts wrong, so the tests of drafts can fail."""

from __future__ import annotations

import pytest

from sglang_lp.builtins import (
    AllowedTokensLogitProcessor,
    DeepseekOCRNoRepeatNGramLogitProcessor,
    ForcedSequenceLogitProcessor,
)
from support.models.tiny_model import FREQUENT
from support.oracles.greedy import rule
from support.servers.asking import body, recorder, tag
from support.servers.configurations import on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("stock, eagle chains")]

PROMPT = [*range(300, 309)]
ALLOWED = {"token_ids": [*FREQUENT]}


@pytest.mark.parametrize(
    ("processor", "params"),
    [
        (AllowedTokensLogitProcessor, ALLOWED),
        (ForcedSequenceLogitProcessor, {"token_ids": [*range(300, 310)]}),
        (DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 1, "window_size": 1000}),
    ],
)
def test_the_oracle_finds_tokens_that_no_processor_has_edited(server, oracle, processor, params):
    reply = server.post("/generate", body(PROMPT, processor, params))
    assert reply.status == 200, reply.body

    with pytest.raises(AssertionError, match="expected"):
        oracle.check(PROMPT, reply.output_ids, rule(processor, params))


def test_sampled_tokens_are_not_what_the_processor_leaves(server):
    request = body(PROMPT, AllowedTokensLogitProcessor, ALLOWED, temperature=0.8)
    assert not {*server.post("/generate", request).output_ids} <= {*FREQUENT}


def test_a_recorder_sees_no_drafted_token(server):
    request = recorder(PROMPT)
    reply = server.post("/generate", request)

    assert reply.body["meta_info"]["spec_num_correct_drafts"] > 0
    assert {line["position"] for line in server.records("edit", tag=tag(request))} == {0}
