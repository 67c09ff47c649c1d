"""Metrics count every request that ends with HTTP 500, under labels of a fixed set."""

from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from sglang_lp.catalogue.opened import Renewal
from sglang_lp.errors import Contradiction, ProcessorFault
from sglang_lp.faults import OURS, as_fault
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.metrics import Metrics
from sglang_lp.trust import Gate, Policy

REPORT = {"forced": 0}
NAMES = Guard(Policy.default()).processors


def version(written):
    """Return an open catalogue as metrics see it."""
    return SimpleNamespace(name="products", written=written)


@pytest.fixture(scope="module")
def metrics():
    known = {*REGISTRY._collector_to_names}
    yield Metrics("fingerprint", NAMES, [version(5.0)])
    for collector in {*REGISTRY._collector_to_names} - known:
        REGISTRY.unregister(collector)


def sampled(name):
    """Return the samples of one metric by the values of their labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == name
    }


def grown(name, act):
    before = sampled(name)
    act()
    return {
        labels: value - before.get(labels, 0.0)
        for labels, value in sampled(name).items()
        if value != before.get(labels, 0.0)
    }


FAULTS = "sglang_lp_faults_total"
VERSIONS = "sglang_lp_catalogue_versions_total"
WRITTEN = "sglang_lp_catalogue_timestamp_seconds"


def test_every_allowed_class_has_faults_before_the_first(metrics):
    assert len(NAMES) > 20
    assert {*sampled(FAULTS)} >= {
        (name, kind) for name in {*NAMES, "always", "unknown"} for kind in ("processor", "toolkit")
    }


@pytest.mark.parametrize(
    ("error", "labels"),
    [
        (as_fault("my.module:Own", "before its request began", OSError()), ("Own", "processor")),
        (as_fault("Own", "before its request began", OSError()), ("Own", "processor")),
        (ProcessorFault("no name"), ("unknown", "toolkit")),
        (as_fault(OURS, "before its request began", OSError()), ("unknown", "toolkit")),
    ],
)
def test_a_fault_before_a_request_began_counts_for_what_failed(metrics, error, labels):
    assert grown(FAULTS, lambda: metrics.fail(Coded.of(error))) == {labels: 1}


@pytest.mark.parametrize(
    ("processors", "culprit", "label"),
    [
        (["A", "B"], "B", "B"),
        (["A", "B"], "always", "always"),
        (["A", "B"], "ChainLogitProcessor", "unknown"),
        (["A", "B"], None, "unknown"),
        (["A"], None, "A"),
        ([], "always", "always"),
        ([], None, "always"),
    ],
)
def test_a_failed_request_counts_once_for_the_class_that_failed(
    metrics, processors, culprit, label
):
    report = {**REPORT, "processors": processors}
    kind = "toolkit" if culprit is None else "processor"

    def finish():
        metrics.finish([report], Coded.of(ProcessorFault("it failed", culprit)))

    assert grown(FAULTS, finish) == {(label, kind): 1}


def test_a_contradiction_is_no_fault(metrics):
    def finish():
        report = {**REPORT, "processors": ["A"]}
        metrics.finish([report], Coded.of(Contradiction("no token is left")))

    assert grown(FAULTS, finish) == {}
    assert grown("sglang_lp_contradictions_total", finish) == {("A",): 1}


def test_the_info_names_the_policy(metrics):
    ((release, policy),) = sampled("sglang_lp_info")
    assert release[0].isdigit()
    assert policy == "fingerprint"


def test_each_beam_counts_with_its_tokens_and_items_and_the_request_once(metrics):
    def finish(*reports):
        told = [{"processors": ["A"], "forced": 2, "catalogue": one} for one in reports]
        return lambda: metrics.finish(told, Coded.of(ProcessorFault("it failed", "A")))

    found = {"name": "products", "items": [["tea"], ["cup", "mug"]]}
    assert grown("sglang_lp_forced_tokens_total", finish(found, found)) == {(): 4}
    assert grown("sglang_lp_catalogue_items_total", finish(found, found)) == {("products",): 4}
    assert grown(FAULTS, finish(found, found)) == {("A", "processor"): 1}


@pytest.mark.parametrize(
    "told",
    [
        *(5, ["block"], [{}]),
        *([{"tokens": tokens, "ended": "model"}] for tokens in ("3", -1)),
        *([{"tokens": 3, "ended": ended}] for ended in ("bored", 7, ["model"])),
    ],
)
def test_what_a_class_of_the_operator_calls_thinking_makes_no_series(metrics, told):
    report = {"processors": ["A"], "forced": 0, "thinking": told}

    def finish():
        metrics.finish([report], None)

    assert grown("sglang_lp_thinking_blocks_total", finish) == {}
    report["thinking"] = [{"tokens": 3, "ended": None}, {"tokens": 4, "ended": "soft"}]
    assert grown("sglang_lp_thinking_blocks_total", finish) == {("open",): 1, ("soft",): 1}
    assert grown("sglang_lp_thinking_tokens_total", finish) == {(): 7}


@pytest.mark.parametrize(
    "told",
    [
        *("tea", ["tea"], {}, {"name": ["products"]}, {"name": "others", "items": []}),
        *({"name": "products"}, {"name": "products", "items": 3}),
    ],
)
def test_what_a_class_of_the_operator_calls_a_catalogue_makes_no_series(metrics, told):
    report = {"processors": ["A"], "forced": 0, "catalogue": told}

    def finish():
        metrics.finish([report], None)

    assert grown("sglang_lp_catalogue_items_total", finish) == {}


def test_dead_beams_are_counted_apart(metrics):
    assert grown("sglang_lp_beams_total", lambda: metrics.end_beams(3, 5)) == {
        ("alive",): 3,
        ("dead",): 5,
    }


@pytest.mark.parametrize(("problem", "outcome"), [(None, "taken_up"), ("damaged", "refused")])
@pytest.mark.parametrize("gate", Gate)
def test_a_new_version_counts_for_its_process_and_tells_its_age(metrics, gate, problem, outcome):
    def renew():
        metrics.renew(gate, Renewal("products", problem), version(9.0))

    series = (gate.value, "products", outcome)
    assert sampled(VERSIONS)[series] >= 0  # before the first
    assert grown(VERSIONS, renew) == {series: 1}
    assert sampled(WRITTEN) == {("products",): 9.0}
    metrics.renew(gate, Renewal("products", "damaged"), version(5.0))
    assert sampled(WRITTEN) == {("products",): 5.0}
