"""The benchmark of an engine on a GPU, without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path

import pytest
from sglang.srt.sampling import custom_logit_processor

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
    assert [job["shapes"] for job in jobs] == [engine.SHAPES["cpu"]] * 2


def test_the_exit_code_says_that_a_row_has_wrong_tokens(monkeypatch, tmp_path):
    def play(_module, job, *_others):
        with Path(job["out"]).open("ab") as file:
            file.write(b'{"arm":"bans","wrong":%d}\n' % (job["engine"] == "toolkit"))

    assert run(monkeypatch, tmp_path, play)[0] == 1


@pytest.mark.parametrize("engine", generating.ARMS)
def test_the_parameters_of_every_arm_fit_its_processor(engine):
    for arm in generating.ARMS[engine].values():
        if arm.processor is not None and engine == "toolkit":
            parse = getattr(builtins, arm.processor).parse_params
            assert parse(arm.params, generating.VOCAB) is not None
        elif arm.processor is not None:
            assert getattr(custom_logit_processor, arm.processor)().to_str()


WITHOUT = [*range(100, 120), *range(100, 120)]
RIGHT = {
    "budget, idle": (WITHOUT, [*WITHOUT[:-1], 7]),
    "budget, spent": ([151_668, 5], [5, 151_668]),
    "bans": ([100, 101], [99, 100]),
    "forced": ([9, 9], [9, 8]),
    "DRY": ([*range(30)], WITHOUT),
    "n-grams": ([1, 2, 3, 1, 2, 4], [1, 2, 3, 1, 2, 3]),
}


@pytest.mark.parametrize("name", RIGHT)
def test_each_arm_tells_right_tokens_from_wrong_ones(name):
    right, wrong = RIGHT[name]

    for arms in generating.ARMS.values():
        if name in arms and arms[name].is_right is not None:
            assert arms[name].is_right(right, WITHOUT)
            assert not arms[name].is_right(wrong, WITHOUT)
    assert {*generating.ARMS["toolkit"]} - {*RIGHT} == {"no processor"}


def test_the_stand_ins_bring_the_entry_points_of_a_toolkit_that_is_not_installed(
    monkeypatch, tmp_path
):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(kernels, "distribution", missing)
    kernels.write(tmp_path)
    (written,) = distributions(path=[str(tmp_path)])
    found = {(one.group, one.name): one.value for one in written.entry_points}

    own = {
        (one.group, one.name): one.value
        for one in distribution("sglang-lp").entry_points
        if one.group.startswith("sglang")
    }
    assert own
    assert found == own | {
        ("sglang.srt.plugins", kernels.PLUGIN): f"{kernels.__name__}:do_without_cutlass"
    }


def test_without_cutlass_nothing_is_fused(monkeypatch):
    from sglang.srt.layers.dual_gemm import DualGemm

    monkeypatch.setattr(DualGemm, "_select_mode", None)
    monkeypatch.setattr(kernels, "find_spec", lambda _name: None)
    kernels.do_without_cutlass()

    assert DualGemm._select_mode("projection", 1024) is None


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
