import json
import time

import pytest

from benchmarks.devices import gpu, parts
from benchmarks.devices.device import Device
from benchmarks.devices.parts import PARTS, Part, Unit

CPU = Device("cpu")


def run(monkeypatch, tmp_path, *units, minutes="1", more=()):
    """Return the exit code and the records of one part with these units."""
    part = Part("tried", 1.0, lambda _device: iter(units))
    monkeypatch.setattr(gpu, "PARTS", (part, *more))
    out = tmp_path / "made" / "gpu.jsonl"
    code = gpu.main(["--device", "cpu", "--minutes", minutes, "--out", str(out)])
    return code, [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_part_runs_on_a_cpu_too(part):
    units = [*part.units(CPU)]

    for unit in (units[0], units[len(units) // 2], units[-1]):
        assert unit.run()


def test_the_parts_share_the_minutes():
    assert sum(part.share for part in PARTS) == pytest.approx(1)


def test_a_short_run_names_all_that_it_did_not_reach(tmp_path):
    out = tmp_path / "gpu.jsonl"

    assert gpu.main(["--device", "cpu", "--minutes", "0.02", "--out", str(out)]) == 0

    head, *found = (json.loads(line) for line in out.read_text().splitlines())
    assert head["minutes"] == 0.02
    for part in PARTS:
        own = [one for one in found if one["part"] == part.name]
        named = [one["unit"] for one in own if "unit" in one]
        named += [name for one in own for name in one.get("not_reached", ())]
        assert named == [unit.name for unit in part.units(CPU)]


def test_a_unit_that_fails_is_recorded_and_the_others_run(monkeypatch, tmp_path):
    def fail():
        raise RuntimeError("other logits")

    units = Unit("fails", fail), Unit("runs", lambda: {"host_us": 1})
    code, (_, *found) = run(monkeypatch, tmp_path, *units)

    assert code == 1
    assert found == [
        {"part": "tried", "unit": "fails", "failed": "RuntimeError: other logits"},
        {"part": "tried", "unit": "runs", "host_us": 1},
    ]


def test_a_part_past_its_deadline_leaves_the_next_part_its_time(monkeypatch, tmp_path):
    slow = Unit("slow", lambda: time.sleep(0.02) or {})
    last = Part("last", 1000.0, lambda _device: iter([Unit("runs", dict)]))
    units = slow, Unit("unreached", dict)
    code, (_, *found) = run(monkeypatch, tmp_path, *units, minutes="0.0001", more=(last,))

    assert code == 0
    assert found == [
        {"part": "tried", "unit": "slow"},
        {"part": "tried", "not_reached": ["unreached"]},
        {"part": "last", "unit": "runs"},
    ]


def test_a_verify_step_that_leaves_other_logits_than_the_reference_is_wrong(monkeypatch):
    monkeypatch.setattr(parts.reference, "edit", lambda *_: None)

    with pytest.raises(RuntimeError, match="with drafts: other logits"):
        parts.check_drafts(parts.forced(1), CPU)


def test_a_verify_step_that_launches_more_than_it_may_is_refused(monkeypatch):
    monkeypatch.setattr(parts, "DRAFT_LIMITS", (0, 0, 0))

    with pytest.raises(RuntimeError, match="launched"):
        parts.measure_drafts(parts.forced(1), CPU)
