"""An engine in an actor of Ray is guarded as any other."""

from __future__ import annotations

import os

import pytest

from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from support import tiny_model
from support.asking import body
from support.disaggregated import PACKAGES
from support.greedy import Oracle, rule
from support.probe import SMUGGLED
from support.processes import play
from support.servers import POLICY
from support.settings import environment
from support.tiny_model import FREQUENT

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not (PACKAGES / "ray").exists(), reason="needs Ray in .cache/fleet: make test SUITE=fleet"
    ),
]

BAN = DisallowedTokensLogitsProcessor, {"token_ids": [*FREQUENT]}


def test_an_engine_in_an_actor_runs_what_is_allowed_and_nothing_else(tmp_path):
    model = tiny_model.make(tmp_path / "model")
    payload, params = SMUGGLED["remote code"]
    job = {
        "model": str(model),
        "asked": [
            body([5, 6, 7], *BAN, max_new_tokens=12),
            {**body([5], custom_params=params), "custom_logit_processor": payload},
        ],
    }
    variables = {
        "SGLANG_LP_POLICY": str(POLICY),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    env = environment(variables)
    env["PYTHONPATH"] += os.pathsep + str(PACKAGES)
    edited, refused = play("support.ray_actor", job, tmp_path, env, 600)

    Oracle(model).check([5, 6, 7], edited["output_ids"], rule(*BAN))
    assert edited["meta_info"]["sglang_lp"]["processors"] == ["DisallowedTokensLogitsProcessor"]
    assert "allow" in refused
