import json

import pytest

from benchmarks.devices import gpu


def test_the_gpu_benchmark_runs_its_checks_on_a_cpu_too(tmp_path, capsys):
    out = tmp_path / "results.json"

    assert gpu.main(["--device", "cpu", "--quick", "--out", str(out)]) == 0

    measured = json.loads(out.read_text())["cases"]
    assert {case["rows"] for case in measured} == set(gpu.QUICK_ROWS)
    assert {case["kernels"] for case in measured if "idle" in case["key"]} == {0}
    assert max(case["kernels"] for case in measured) > 0
    assert "disallowed-same-8" in capsys.readouterr().out
    drafts = [case for case in measured if case["key"].endswith("-drafts")]
    assert {case["waits"] for case in drafts if "idle" in case["key"]} == {0}
    assert {case["waits"] for case in drafts if "idle" not in case["key"]} == {1}


def test_a_verify_step_that_leaves_other_logits_than_the_reference_is_wrong(monkeypatch):
    monkeypatch.setattr(gpu.reference, "edit", lambda *_: None)

    with pytest.raises(RuntimeError, match="with drafts: wrong logits"):
        gpu.check_drafts(gpu.forced(1), gpu.Device("cpu"))


def test_a_verify_step_that_launches_more_than_it_may_is_refused(monkeypatch):
    monkeypatch.setattr(gpu, "DRAFT_KERNELS", -gpu.KERNELS)

    with pytest.raises(RuntimeError, match="launched"):
        gpu.measure_drafts(gpu.forced(1), gpu.Device("cpu"))
