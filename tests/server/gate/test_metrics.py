"""Metrics count every request that ends with HTTP 500, under labels of a fixed set."""

import pytest
from prometheus_client import REGISTRY

from sglang_lp.errors import ProcessorFault
from sglang_lp.faults import as_fault
from sglang_lp.server.gate.metrics import Metrics
from sglang_lp.trust import Policy, Verifier

REPORT = {"forced": 0}
ALLOWED = Verifier(Policy.default()).allowed


@pytest.fixture(scope="module")
def metrics():
    known = {*REGISTRY._collector_to_names}
    yield Metrics("fingerprint", ALLOWED)
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


def test_every_allowed_class_has_faults_before_the_first(metrics):
    names = {one.name.rpartition(":")[2] for one in ALLOWED}
    assert len(names) > 20
    assert {*sampled(FAULTS)} >= {
        (name, kind) for name in names | {"always"} for kind in ("processor", "toolkit")
    }


@pytest.mark.parametrize(
    ("error", "labels"),
    [
        (as_fault("my.module:Own", "before its request began", OSError()), ("Own", "processor")),
        (as_fault("Own", "before its request began", OSError()), ("Own", "processor")),
        (ProcessorFault("no name"), ("unknown", "processor")),
        (OSError("ours"), ("unknown", "toolkit")),
    ],
)
def test_a_fault_before_a_request_began_counts_for_what_failed(metrics, error, labels):
    assert grown(FAULTS, lambda: metrics.fail_early(error)) == {labels: 1}


@pytest.mark.parametrize("kind", ["processor", "toolkit"])
@pytest.mark.parametrize(
    ("processors", "labels"), [(["A", "B"], ["A", "B"]), (["A"], ["A"]), ([], ["always"])]
)
def test_a_fault_counts_for_each_processor_of_its_request(metrics, processors, labels, kind):
    report = {**REPORT, "processors": processors}
    assert grown(FAULTS, lambda: metrics.finish(report, fault=kind, contradicts=False)) == {
        (label, kind): 1 for label in labels
    }


def test_a_contradiction_is_no_fault(metrics):
    def finish():
        metrics.finish({**REPORT, "processors": ["A"]}, fault=None, contradicts=True)

    assert grown(FAULTS, finish) == {}
    assert grown("sglang_lp_contradictions_total", finish) == {("A",): 1}


def test_the_info_names_the_policy(metrics):
    ((version, policy),) = sampled("sglang_lp_info")
    assert version[0].isdigit()
    assert policy == "fingerprint"
