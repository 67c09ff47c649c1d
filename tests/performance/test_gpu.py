import json

from benchmarks import gpu


def test_the_gpu_benchmark_runs_its_checks_on_a_cpu_too(tmp_path, capsys):
    out = tmp_path / "results.json"

    assert gpu.main(["--device", "cpu", "--quick", "--out", str(out)]) == 0

    measured = json.loads(out.read_text())["cases"]
    assert {case["rows"] for case in measured} == set(gpu.QUICK_ROWS)
    assert {case["kernels"] for case in measured if "idle" in case["key"]} == {0}
    assert max(case["kernels"] for case in measured) > 0
    assert "disallowed-same-8" in capsys.readouterr().out
