"""The pages that show records of a GPU."""

import json

from benchmarks.devices import report

HEAD = {"engine": "stock", "device": "a GPU", "torch": "2", "sglang": "0"}
RUN = {
    "requests": 1,
    "prompt_tokens": 32,
    "tokens": 8,
    "step_ms": 1.0,
    "slower_ms": 1.5,
    "tokens_per_second": 8.0,
}


def test_records_of_engines_are_stored_and_shown():
    records = [
        HEAD,
        {"engine": "stock", "stage": "the engine is started"},
        {"engine": "stock", "arm": "no processor", **RUN},
        {"engine": "toolkit", "arm": "bans", **RUN, "arrival_ms": 12.4, "wrong": 0},
        {"engine": "toolkit", "arm": "bans", **RUN, "requests": 4, "prompt_tokens": 2048},
    ]
    stored = report.engine_results(records)
    shown = report.ENGINE.block(stored)

    assert stored["device"] == "a GPU"
    assert [one.get("wrong") for one in stored["runs"]] == [None, 0, None]
    assert "| sglang-lp | bans | 1.00 (1.50), arrival 12 |" in shown
    assert "| engine | requests carry | 4 of 2,048 tokens |" in shown
    assert "| SGLang | no processor | 1.00 (1.50) |" in shown


def test_records_of_steps_are_stored_and_shown(tmp_path, monkeypatch):
    times = {"host_us": 5.0, "done_us": 1200.0, "fill_us": 2.0}
    records = [
        {"device": "a GPU", "torch": "2", "minutes": 1},
        {"part": "bits", "unit": "bans", "equal": "a CPU"},
        {"part": "bits", "unit": "pools", "failed": "RuntimeError: other logits"},
        {"part": "waits", "unit": "bans", "waits": 0},
        {"part": "launches", "unit": "bans", "differs": True},
        {"part": "times", "unit": "bans, of each row, 256 rows", "rows": 256, "float32": times},
        {"part": "times", "unit": "late", "rows": 256, "failed": "RuntimeError: late"},
    ]
    file = tmp_path / "gpu.jsonl"
    file.write_text("\n".join(map(json.dumps, records)))
    stored = []
    monkeypatch.setattr(report, "STEPS", report.STEPS._replace(block=stored.append))
    monkeypatch.setattr(type(report.STEPS), "store", lambda part, found: part.block(found))
    report.main([str(file)])
    shown = report._steps_block(stored[0])

    assert "| bans, of each row | 5 | 1,200 |" in shown
    assert "- 1 of 2 checks that logits equal" in shown
    assert "failed: pools." in shown
    assert "- 1 of 1 kinds of work launch or copy otherwise" in shown
