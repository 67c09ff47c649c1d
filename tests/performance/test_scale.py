"""The figures for a large deployment are computed from stored measurements."""

import pytest

from benchmarks.devices import scale
from benchmarks.devices.device import Device

WORKED = {"machine": {"cpu": "Z80"}, "processors": [{"name": "a rule", "ms": 12.8}]}
SLEPT = {
    "cases": [
        {"rows": rows, "history": 1024, "drafts": drafts, "cold_us": rows + drafts}
        for rows in (256, 1024)
        for drafts in (False, True)
    ]
}
RANK = {"rows": 256, "nodes": 9}


def test_the_hosts_time_is_that_of_a_node_times_the_nodes_and_of_sleep_that_of_a_step():
    assert scale.lines(RANK, WORKED, SLEPT) == [
        ("thinking budget, idle", 0.257),
        ("a rule", pytest.approx(23.04)),
    ]


def test_what_is_longer_than_the_forward_is_added(monkeypatch):
    monkeypatch.setattr(
        type(scale.PART), "stored", lambda part: {"sleep": SLEPT, "at-work": WORKED}[part.name]
    )
    steps = [{"step_ms": 100, "source": "x"}, {"step_ms": 20, "source": None}]

    block = scale.page_block({**RANK, "steps": steps})

    assert block.splitlines()[0] == "Host: one core of this CPU: Z80."
    assert block.splitlines()[-1] == "| a rule | 23 | nothing | 3.0 ms |"


def test_a_gpu_is_asked_about_every_line_of_the_page():
    names = [name for name, _ in scale.cases(2)]
    found = scale.lines(RANK, scale.at_work.PART.stored(), scale.sleep.PART.stored())

    assert names == [name for name, _ in found]


@pytest.mark.parametrize("name", ["thinking budget, idle", "n-gram rule, loop"])
def test_a_device_is_asked_for_the_same_rows_and_nodes(name):
    device = Device("cpu")
    host, done = scale.measure(dict(scale.cases(2))[name], device, {"nodes": 9})

    assert 0 < host <= done
    assert scale.line(name, 1.234, 5.678) == (
        f"{name}: host 1.23 ms a step, until the device is done 5.68 ms"
    )
