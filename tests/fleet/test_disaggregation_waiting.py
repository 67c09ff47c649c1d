"""Prefill and decode on two servers: many long prompts that come together.

More is to be read of them than may be between two steps, on either server.
"""

from __future__ import annotations

import pytest

from sglang_lp.builtins import DeepseekOCRNoRepeatNGramLogitProcessor
from support.models import tiny_model
from support.oracles.greedy import Oracle, rule
from support.plugins import PROBES
from support.servers.asking import body
from support.servers.configurations import POLICY
from support.servers.disaggregated import missing, pair

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

TEXTS = 48
COMMON = [100 + i * i % 700 for i in range(3_900)]
PARAMS = {"ngram_size": 2, "window_size": 8_000}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model.make(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="module")
def both(tiny, tmp_path_factory):
    server = ({"max_total_tokens": 240_000}, {"SGLANG_LP_POLICY": str(POLICY)})
    directory = tmp_path_factory.mktemp("pair")
    with pair(tiny, directory, server, server, paths=[PROBES]) as both:
        yield both


def test_every_token_is_exact(tiny, both):
    both.post("/generate", body(COMMON, max_new_tokens=1))
    asked = [
        body([*COMMON, 300 + i], DeepseekOCRNoRepeatNGramLogitProcessor, PARAMS, max_new_tokens=6)
        for i in range(TEXTS)
    ]
    replies = both.at_once(asked)

    assert [len(reply.output_ids) for reply in replies] == [6] * TEXTS
    oracle, kind = Oracle(tiny), rule(DeepseekOCRNoRepeatNGramLogitProcessor, PARAMS)
    for one, reply in [*zip(asked, replies, strict=True)][::8]:
        oracle.check(one["input_ids"], reply.output_ids, kind)
