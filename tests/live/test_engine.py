"""Processors in process, through ``Engine.async_generate``, with the plugin and its stand-in."""

from __future__ import annotations

import orjson
import pytest

from sglang_lp.client import attach, probabilities
from support.oracles.greedy import Oracle, rule
from support.plugins import PROBES
from support.processors.recording import Recorder
from support.servers.asking import body, recorder, tag
from support.servers.configurations import POLICY
from support.servers.engine import run_engine

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

WAYS = {
    "plugin": {"SGLANG_LP_POLICY": str(POLICY)},
    # The remedy that the log of a stock server names.
    "stock, sampling delayed": {"SGLANG_PLUGINS": "none", "SGLANG_ENABLE_DELAY_SAMPLE": "1"},
}
GREEDY = [recorder([30 + i] * (1 + 7 * i), steering=True, ignore_eos=True) for i in range(8)]
#: One after the other: the generator of random numbers is seeded once for the process.
SAMPLED = [
    recorder([60 + i], steering=i % 2 == 0, temperature=1.0, ignore_eos=True) for i in range(6)
]

VOTE = attach("ChoiceLogitProcessor", choices=["yes", "no"], pick="likeliest")
SCORED = VOTE.generate_body(body([30, 31]))


@pytest.fixture(scope="module")
def played(tiny, tmp_path_factory):
    """Return for each way the replies to the greedy and to the sampled requests, and the record.

    Behind them comes the reply to a request whose choices are scored.
    """
    results = {}
    for way, variables in WAYS.items():
        folder = tmp_path_factory.mktemp("in-process")
        sampled = SAMPLED
        if way != "plugin":  # where a processor does nothing, its absence must do the same
            sampled = [
                request
                if request["sampling_params"]["custom_params"]["steering"]
                else body(request["input_ids"], temperature=1.0, ignore_eos=True)
                for request in SAMPLED
            ]
        batches = [*([request] for request in sampled), GREEDY, [SCORED]]
        *alone, greedy, (scored,) = run_engine(
            tiny, folder, batches, paths=[PROBES], variables=variables
        )
        lines = [*map(orjson.loads, (folder / "record.jsonl").read_bytes().splitlines())]
        results[way] = greedy, [reply for (reply,) in alone], lines, scored
    return results


def check_seen(request, reply, lines):
    output_ids = reply["output_ids"]
    assert len(output_ids) == 40
    seen = [line for line in lines if line["event"] == "edit" and line["tag"] == tag(request)]
    assert [line["position"] for line in seen] == [*range(40)]
    assert all(line["exact"] and line["fed"] == output_ids[: line["position"]] for line in seen)


@pytest.mark.parametrize("way", WAYS)
def test_histories_are_exact_in_process(way, played, tiny):
    replies, _, lines, _ = played[way]
    oracle = Oracle(tiny)
    for request, reply in zip(GREEDY, replies, strict=True):
        params = request["sampling_params"]["custom_params"]
        oracle.check(request["input_ids"], reply["output_ids"], rule(Recorder, params))
        check_seen(request, reply, lines)


def test_sampled_answers_depend_on_the_seed_and_not_on_who_delays_the_sampling(played):
    _, replies, lines, _ = played["plugin"]
    _, others, *_ = played["stock, sampling delayed"]
    for request, reply, other in zip(SAMPLED, replies, others, strict=True):
        check_seen(request, reply, lines)
        assert reply["output_ids"] == other["output_ids"]
    assert len({tuple(reply["output_ids"]) for reply in replies}) == len(replies)


def test_choices_are_scored_in_process_and_refused_without_the_plugin(played):
    *_, scored = played["plugin"]
    found = probabilities(scored)
    assert (scored["text"], sum(found.values())) == (found.likeliest, pytest.approx(1))

    *_, refused = played["stock, sampling delayed"]
    assert "pick" in str(refused)
