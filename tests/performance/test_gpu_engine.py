"""The benchmark of an engine on a GPU, without an engine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.devices import engine, generating, kernels
from sglang_lp import builtins
from support.processes import EngineError
from support.settings import environment


def run(monkeypatch, tmp_path, play, device="cuda"):
    """Return the exit code and the records with a stand-in for the processes of engines."""
    monkeypatch.setattr(engine, "play", play)
    out = tmp_path / "engine.jsonl"
    code = engine.main(["--device", device, "--minutes", "1", "--out", str(out)])
    return code, [json.loads(line) for line in out.read_text().splitlines()]


def test_an_engine_that_does_not_come_up_says_where_it_ends(monkeypatch, tmp_path):
    def play(_module, job, *_others):
        if job["engine"] == "toolkit" and not job["arguments"]["disable_cuda_graph"]:
            raise EngineError("no answer: the graph was not captured")

    code, records = run(monkeypatch, tmp_path, play)

    assert code == 0  # it came up without graphs
    failed = "no answer: the graph was not captured"
    assert records == [{"engine": "toolkit", "cuda_graphs": True, "failed": failed}]


def test_the_exit_code_says_that_an_engine_did_not_come_up(monkeypatch, tmp_path):
    def play(*_given):
        raise EngineError("no kernels")

    code, records = run(monkeypatch, tmp_path, play)

    assert code == 1
    assert [(one["engine"], one["cuda_graphs"]) for one in records] == [
        (name, graphs) for name in engine.ENGINES for graphs in (True, False)
    ]


def test_the_engines_share_the_minutes(monkeypatch, tmp_path):
    seconds, jobs = [], []

    def play(_module, job, _folder, _env, given):
        seconds.append(given)
        jobs.append(job)

    code, _ = run(monkeypatch, tmp_path, play, "cpu")

    assert code == 0
    assert seconds == pytest.approx([30, 60], abs=5)
    assert [job["requests"] for job in jobs] == [engine.REQUESTS] * 2


@pytest.mark.parametrize("arm", [arm for arm in generating.ARMS.values() if arm is not None])
def test_the_parameters_of_every_arm_fit_its_processor(arm):
    name, params = arm

    assert getattr(builtins, name).parse_params(params, generating.VOCAB) is not None


def test_the_stand_in_for_kernels_has_every_name_and_says_which_kernel_is_missing(tmp_path):
    kernels.write(tmp_path)
    code = (
        "from sgl_kernel import rmsnorm, top_k_renorm_prob\n"
        "from sgl_kernel.utils import is_arch_support_pdl\n"
        "from support.cpu import kernels\n"
        "import sgl_kernel.kvcacheio.transfers\n"
        "assert top_k_renorm_prob is kernels.top_k_renorm_prob\n"
        "assert is_arch_support_pdl() is False\n"
        "rmsnorm(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment({}, [tmp_path]),
        capture_output=True,
        text=True,
        check=False,
    )

    last = done.stderr.splitlines()[-1]
    assert last == "NotImplementedError: sgl_kernel.rmsnorm: this kernel has no stand-in"
