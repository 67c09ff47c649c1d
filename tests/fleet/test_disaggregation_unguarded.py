"""A decode server notices a prefill server that is not guarded, at the first request."""

from __future__ import annotations

import time

import pytest

from sglang_lp import builtins
from support.models import tiny_model
from support.servers.asking import body
from support.servers.disaggregated import missing, pair

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]

STOCK = {"SGLANG_PLUGINS": "sglang_lp_fleet"}
FORCED = body([5], builtins.ForcedSequenceLogitProcessor, {"token_ids": [300, 301]})


@pytest.fixture(scope="module", params=[True, False], ids=["with the flag", "without the flag"])
def both(request, tmp_path_factory):
    tiny = tiny_model.make(tmp_path_factory.mktemp("tiny-model"))
    prefill = {"enable_custom_logit_processor": request.param}, STOCK
    with pair(tiny, tmp_path_factory.mktemp("pair"), prefill) as both:
        yield both


def test_nothing_is_served_with_it_and_nobody_waits(both):
    for asked in (body([5]), FORCED, FORCED):  # the first call meets the peer; the rest know it
        began = time.monotonic()
        answers = both.ask("/generate", asked)

        assert answers.decode.status == 500
        assert "does not run sglang-lp" in answers.decode.body["message"]
        assert answers.prefill.status != 200
        assert time.monotonic() - began < 15
    assert "does not run sglang-lp" in both.decode.log_text()
