"""What is said of a large deployment is worked out from what was measured."""

import pytest

from benchmarks.devices import gpu, scale

DRAFTS = {
    "rules": [
        {"rule": "a rule", "history": 1024, "node_us": 10.0},
        {"rule": "a rule", "history": 16_384, "node_us": 11.0},
    ]
}


def test_the_hosts_time_is_that_of_a_node_times_the_nodes():
    assert scale.lines({"rows": 256, "nodes": 9}, DRAFTS) == [("a rule", pytest.approx(23.04))]


def test_what_is_longer_than_the_forward_is_added(monkeypatch):
    monkeypatch.setattr(type(scale.report.PART), "stored", lambda _part: DRAFTS)
    steps = [{"step_ms": 100, "source": "x"}, {"step_ms": 20, "source": None}]

    block = scale.page_block({"rows": 256, "nodes": 9, "steps": steps})

    assert block.splitlines()[-1] == "| a rule | 23.0 | nothing | 3.0 ms |"


@pytest.mark.parametrize("rule", ["idle budget", "n-gram rule"])
def test_a_device_is_asked_for_the_same_rows_and_nodes(rule):
    device = gpu.Device("cpu")
    host, done = scale.measure(scale.rules(2)[rule], device, {"nodes": 9})

    assert 0 < host <= done
    assert scale.line(rule, 1.234, 5.678) == (
        f"{rule}: host 1.23 ms a step, until the device is done 5.68 ms"
    )
