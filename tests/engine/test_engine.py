"""The same in process, through ``Engine.async_generate``, with the plugin and with its stand-in."""

from __future__ import annotations

import json

import pytest
from asking import recorder, tag
from harness import run_engine
from oracle import rule
from recording import Recorder
from servers import POLICY

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

WAYS = {
    "plugin": {"SGLANG_LP_POLICY": str(POLICY)},
    # The remedy that the log of a stock server names.
    "stock, sampling delayed": {"SGLANG_PLUGINS": "none", "SGLANG_ENABLE_DELAY_SAMPLE": "1"},
}


@pytest.mark.parametrize("way", WAYS)
def test_histories_are_exact_in_process(way, tiny, oracle, tmp_path):
    requests = [recorder([30 + i] * (1 + 7 * i), steering=True) for i in range(8)]
    (replies,) = run_engine(tiny, tmp_path, {"batches": [requests]}, **WAYS[way])
    lines = [*map(json.loads, (tmp_path / "record.jsonl").read_text().splitlines())]
    for request, reply in zip(requests, replies, strict=True):
        output_ids = reply["output_ids"]
        assert len(output_ids) == 40
        params = request["sampling_params"]["custom_params"]
        oracle.check(request["input_ids"], output_ids, rule(Recorder, params))
        seen = [line for line in lines if line["event"] == "edit" and line["tag"] == tag(request)]
        assert [line["position"] for line in seen][:40] == [*range(40)]
        assert all(line["exact"] and line["fed"] == output_ids[: line["position"]] for line in seen)
