"""An engine in an actor of Ray is guarded as any other."""

from __future__ import annotations

import os

import pytest

from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from support.models import tiny_model
from support.models.tiny_model import FREQUENT
from support.oracles.greedy import Oracle, rule
from support.plugins.probe import SMUGGLED
from support.processes import play
from support.servers.asking import body
from support.servers.configurations import POLICY
from support.servers.disaggregated import PACKAGES
from support.settings import environment

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
    edited, refused = play("support.servers.ray_actor", job, tmp_path, env, 600)

    Oracle(model).check([5, 6, 7], edited["output_ids"], rule(*BAN))
    assert edited["meta_info"]["sglang_lp"]["processors"] == ["DisallowedTokensLogitsProcessor"]
    assert "allow" in refused
