"""The process does not serve where the guard is not in place.

SGLang's plugin loader logs what goes wrong and goes on: sglang 0.5.23, srt/plugins/__init__.py
and hook_registry.py. Maintainer's word: sglang pull request 37547.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.server.startup.scenarios import SCENARIOS

#: On a machine with other work; the scenarios take half a minute of a core.
pytestmark = pytest.mark.timeout(1000)

REPOSITORY = Path(__file__).parents[3]
REFUSES, WRONG_USAGE = 78, 2
SERVES = (
    "nothing_is_wrong",
    "nothing_is_wrong_with_a_plugin_that_is_loaded_twice",
    "nothing_is_wrong_with_an_untested_sglang_that_the_operator_takes",
    "serve",
)
#: Why a process of a scenario does not serve, where it is for a way to start that is refused.
NOT_IN_PLACE = "the guard is not in place in this process"
RAY = "SGLang loads no plugin in Ray's actors"
RUST = "SGLANG_RUST_SERVER=1: SGLang's Rust front end drops custom logit processors"
SMG = "SMG's requests have no custom logit processor"
STARTED_OTHERWISE = (
    "schedulers were not started by SGLang's own Engine, but by Ray, SMG or a program"
)
WHY = {
    "front_end_after_a_swallowed_exit": NOT_IN_PLACE,
    "scheduler_after_a_swallowed_exit": NOT_IN_PLACE,
    "front_end_after_a_swallowed_exit_at_the_last_check": NOT_IN_PLACE,
    "launch_server_after_a_swallowed_exit": NOT_IN_PLACE,
    "plugin_is_loaded_again_after_a_swallowed_exit": NOT_IN_PLACE,
    "tokenizer_workers_with_an_app_of_their_own": (
        "SGLANG_HTTP_SERVER_APP_PATH names another app, my.server:app"
    ),
    "tokenizer_worker_without_the_plugin": "did not load the plugin in a tokenizer worker",
    "tokenizer_worker_with_another_policy": "a tokenizer worker has another policy",
    "engine_that_other_processes_would_join": "an Engine with tokenizer_worker_num above 1",
    "ray_without_ray": f"--use-ray: {RAY}",
    "ray_of_a_program": f"--use-ray: {RAY}",
    "ray_engine": f"sglang.srt.ray.engine.RayEngine: {RAY}",
    "ray_launch_server_of_a_program": STARTED_OTHERWISE,
    "rust_server": RUST,
    "rust_server_of_a_program": RUST,
    "smg_grpc": f"--smg-grpc-mode: {SMG}",
    "smg_grpc_by_its_old_name": f"--smg-grpc-mode: {SMG}",
    "smg_headless": f"SMG_SGLANG_ZMQ_HANDSHAKE (smg_grpc_servicer.sglang.headless): {SMG}",
    "scheduler_that_a_program_starts": STARTED_OTHERWISE,
}


@pytest.fixture(scope="module")
def ends() -> dict[str, dict[str, Any]]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")
    }
    run = subprocess.run(
        [sys.executable, "-m", "tests.server.startup.scenarios"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    result: dict[str, dict[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("scenario", SERVES)
def test_a_process_with_the_guard_in_place_serves(
    ends: dict[str, dict[str, Any]], scenario: str
) -> None:
    assert ends[scenario]["exit"] == 0, ends[scenario]["said"]


@pytest.mark.parametrize(
    "scenario", [name for name in SCENARIOS if not name.startswith(("nothing_", "serve"))]
)
def test_a_process_without_the_whole_guard_does_not_serve(
    ends: dict[str, dict[str, Any]], scenario: str
) -> None:
    end = ends[scenario]

    assert end["exit"] == REFUSES, end["said"]
    assert "sglang-lp: this process does not serve" in end["said"]
    assert WHY.get(scenario, "") in end["said"]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name.startswith("serve_")])
def test_the_command_does_not_serve_where_sglang_left_the_guard_out(
    ends: dict[str, dict[str, Any]], scenario: str
) -> None:
    end = ends[scenario]

    assert end["exit"] == WRONG_USAGE, end["said"]
    assert "sglang-lp serve: SGLang did not load the guard" in end["said"]
