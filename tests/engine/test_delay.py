"""Sampling waits for the previous token only in batches with a processor that needs to see it."""

from __future__ import annotations

import pytest

from sglang_lp.builtins import DisallowedTokensLogitsProcessor, ForcedSequenceLogitProcessor
from support.asking import body, recorder
from support.servers import on_servers
from support.tiny_model import FREQUENT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600), on_servers("default", "stock")]

KINDS = {
    "plain": body,
    "disallowed": lambda prompt: body(
        prompt, DisallowedTokensLogitsProcessor, {"token_ids": [*FREQUENT[:2]]}
    ),
    "forced": lambda prompt: body(prompt, ForcedSequenceLogitProcessor, {"token_ids": [9] * 30}),
    "tokens": recorder,
}


def steps_of(server, kinds):
    """Send requests of these kinds at once; return the steps in which they took part."""
    ids = [f"{kind} {len(server.records('step'))} {i}" for i, kind in enumerate(kinds)]
    requests = [
        {**KINDS[kind](range(20, 30)), "rid": rid} for kind, rid in zip(kinds, ids, strict=True)
    ]
    assert {reply.status for reply in server.at_once(requests)} == {200}
    return [step for step in server.records("step") if {*step["rids"]} & {*ids}]


@pytest.mark.parametrize("kind", ["plain", "disallowed", "forced"])
def test_no_step_is_delayed_for_what_needs_no_token(server, kind):
    steps = steps_of(server, [kind] * 4)
    assert len(steps) >= 40
    assert not any(step["delayed"] for step in steps)


def test_a_step_is_delayed_if_and_only_if_a_request_in_it_needs_the_tokens(server):
    steps = steps_of(server, [*KINDS] * 2)
    guarded = "SGLANG_PLUGINS" not in server.variables
    assert len(steps) >= 40
    for step in steps:
        needed = any(rid.startswith("tokens") for rid in step["rids"])
        assert step["delayed"] == (needed and guarded)
