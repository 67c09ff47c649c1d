"""A server that a program starts by itself is guarded as any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_lp.builtins import ForcedSequenceLogitProcessor
from support.plugins.probe import SMUGGLED
from support.servers.asking import body
from support.servers.configurations import STARTED_BY, on_servers

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers(*STARTED_BY)]


def test_an_allowed_processor_acts(server):
    reply = server.post("/generate", body([5], ForcedSequenceLogitProcessor, {"token_ids": [7, 8]}))
    assert reply.output_ids[:2] == [7, 8]


@pytest.mark.parametrize("asked", [{}, {"return_sampling_mask": True}])
def test_remote_code_is_refused(server, asked):
    payload, params = SMUGGLED["remote code"]
    hostile = {**body([5], custom_params=params), "custom_logit_processor": payload, **asked}
    assert server.post("/generate", hostile).status == 400
    assert server.is_healthy()
    assert not Path(f"{server.record}.code-has-run").exists()
