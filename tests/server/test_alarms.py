"""Each alert is caused: its metric, its rule, the log and the runbook tell the same.

A cause runs the toolkit's own code between two scrapes: the minutes of a rule.
grep searches the log for the texts that the runbook names.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from prometheus_client import REGISTRY

from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.file import save
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.gate import metrics
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler.gate import SchedulerGate
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.trust import Policy
from support.fakes.requests import Req
from support.prometheus import quantiles

ROOT = Path(__file__).parents[2]
((GROUP,),) = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text()).values()
RULES = {rule["alert"]: rule["expr"] for rule in GROUP["rules"]}
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## )", RUNBOOK, re.DOTALL | re.MULTILINE))

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class Faulty(LogitProcessor):
    """Fails for every request."""

    @classmethod
    def fit_params(cls, params, served):
        raise KeyError("a wrong class")

    def edit(self, request, edits):
        """Never called."""


FAULTY = f"{__name__}:Faulty"


# The rules, as Prometheus reads them


class Scrapes(NamedTuple):
    """The metrics of all servers before and after a cause."""

    before: Samples
    after: Samples

    def grown(self, selector: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the series that a selector chooses, each with its increase.

        Of a series that has begun since, Prometheus knows no increase.
        """
        name, _, rest = selector.partition("{")
        for (of, labels), before in self.before.items():
            own = dict(labels)
            if of == name and all(
                (re.fullmatch(text, own.get(label, "")) is not None) == (sign[0] == "=")
                for label, sign, text in re.findall(r'(\w+)(=|!=|=~|!~)"([^"]*)"', rest)
            ):
                yield own, self.after[of, labels] - before

    def summed(self, query: str) -> dict[tuple[str, ...], float]:
        """Return the values of ``sum by (LABELS) (increase(SELECTOR[TIME]))``."""
        by, selector = re.fullmatch(
            r"sum(?: by \(([^)]*)\) )?\(+(?:increase|rate)\((.*)\[\w+\]\)+", query
        ).groups()
        names = by.split(", ") if by else []
        sums: dict[tuple[str, ...], float] = {}
        for labels, grown in self.grown(selector):
            group = tuple(labels[name] for name in names)
            sums[group] = sums.get(group, 0.0) + grown
        return sums

    def instances(self, name: str) -> set[str]:
        """Return the servers that have a metric now."""
        return {dict(labels)["instance"] for of, labels in self.after if of == name}

    def fires(self, rule: str) -> bool:
        """Tell whether a rule would fire, were it so for long enough."""
        if unless := re.fullmatch(r"(\S+) unless on \(instance\) (\S+)", rule):
            return bool(self.instances(unless[1]) - self.instances(unless[2]))
        query, least = rule.rsplit(" > ", 1)
        if counted := re.fullmatch(r"count\(count by \((\w+)\) \((\w+)\)\)", query):
            found = {dict(labels)[counted[1]] for of, labels in self.after if of == counted[2]}
            return len(found) > float(least)
        if quantile := re.fullmatch(r"histogram_quantile\(([\d.]+), (.*)\)", query):
            by_bound = {bound: [count] for (_, bound), count in self.summed(quantile[2]).items()}
            return quantiles(float(quantile[1]), by_bound)[0] > float(least)
        if " / " in query:
            above, below = (sum(self.summed(one).values()) for one in query.split(" / "))
            return below > 0 and above / below > float(least)
        return any(value > float(least) for value in self.summed(query).values())


def scrape(instance: str = "here") -> Samples:
    """Return the metrics of this process as those of a server."""
    return {
        (sample.name, frozenset({**sample.labels, "instance": instance}.items())): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
    }


# The causes


class Server:
    """The gate of a server with metrics and a catalogue, which has served for a while."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "items.cat"
        save(build(np.array([[1, 2]], np.int32)), self.file)
        (folder / "policy.toml").write_text(
            f'allow = ["{FAULTY}"]\n[catalogues.items]\nfile = "items.cat"\n'
        )
        self.guard = Guard(Policy.from_toml(folder / "policy.toml"))
        self.gate = SchedulerGate(self.guard, PendingResults(), Arrivals())
        catalogues = self.guard.server.catalogues.now.values()
        metrics.start(SimpleNamespace(enable_metrics=True), "p1", self.guard.processors, catalogues)
        self.ask("NoSuchLogitProcessor")
        for ended in ("budget", "model"):
            self.finish(ended)

    def ask(self, payload: str, **params: Any) -> None:
        """Ask for a processor at the scheduler's gate."""
        self.gate.admit_req(None, Req(payload, params, rid="0" * 32))

    def finish(self, ended: str) -> None:
        """Count a request with a thinking block."""
        report = {
            "processors": ["ThinkingBudgetLogitProcessor"],
            "forced": 0,
            "thinking": [{"tokens": 9, "ended": ended}],
        }
        metrics.writing().finish([report], None)


def fail_class(server: Server, _patch: Any) -> None:
    server.ask(FAULTY)


def fail_toolkit(server: Server, patch: Any) -> None:
    def decide(*_args: Any) -> None:
        raise MemoryError

    patch.setattr(Guard, "_decide", decide)
    server.ask("DRYLogitProcessor")


def refuse_payloads(server: Server, _patch: Any) -> None:
    for _ in range(21):
        server.ask("NoSuchLogitProcessor")


def slow_down(_server: Server, _patch: Any) -> None:
    for seconds in (0.001, 0.02):
        metrics.writing().step(seconds, awaited=False)


def cut_thoughts(server: Server, _patch: Any) -> None:
    for ended in ("budget", "budget", "model"):
        server.finish(ended)


def refuse_catalogue(server: Server, patch: Any) -> None:
    seen: Queue[None] = Queue()
    renewed = server.guard._renewed

    def noted(renewal: Any) -> None:
        renewed(renewal)
        seen.put(None)

    patch.setattr(server.guard, "_renewed", noted)
    server.guard._follow_catalogues()
    server.file.write_bytes(b"x" * 5000)
    seen.get(timeout=20)


CAUSES: Mapping[str, Callable[[Server, Any], None]] = {
    "SglangLpProcessorFails": fail_class,
    "SglangLpToolkitFails": fail_toolkit,
    "SglangLpPayloadsRefused": refuse_payloads,
    "SglangLpSlowSteps": slow_down,
    "SglangLpThinkingCut": cut_thoughts,
    "SglangLpCatalogueRefused": refuse_catalogue,
}
#: Alerts on what several servers say, with the metrics of the second.
ELSEWHERE = {
    "SglangLpUnguarded": {("sglang:num_running_reqs", ()): 0.0},
    "SglangLpPoliciesDiffer": {("sglang_lp_info", (("version", "1"), ("policy", "p2"))): 1.0},
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    known = {*REGISTRY._collector_to_names}
    monkeypatch.setattr(metrics, "_writing", None)
    yield Server(tmp_path)
    for collector in {*REGISTRY._collector_to_names} - known:
        REGISTRY.unregister(collector)


def searches(section: str) -> list[list[str]]:
    """Return the searches of the log in a section, as arguments of grep."""
    found = re.findall(r"`grep ((?:--\S+ \d+ )?)'([^']+)' server\.log`", section)
    found += [("", quoted) for quoted in re.findall(r"lines with `([^`]+)`", section)]
    return [[*options.split(), "--regexp", text] for options, text in found]


def test_every_alert_has_a_cause():
    assert {*CAUSES, *ELSEWHERE} == {*RULES}


@pytest.mark.parametrize("alert", CAUSES)
def test_a_cause_fires_its_alert_alone_and_is_found_where_the_runbook_looks(
    alert, server, monkeypatch, caplog, tmp_path
):
    caplog.set_level("INFO", logger="sglang_lp")
    before = scrape()
    CAUSES[alert](server, monkeypatch)
    scrapes = Scrapes(before, scrape())

    assert [one for one, rule in RULES.items() if scrapes.fires(rule)] == [alert]
    assert not [one for one, rule in RULES.items() if Scrapes(before, before).fires(rule)]
    (tmp_path / "server.log").write_text("\n".join(caplog.messages) + "\n")
    asked = searches(SECTIONS[alert])
    assert bool(asked) == bool(caplog.messages)  # a runbook looks into the log if that says it
    for arguments in asked:
        found = subprocess.run(
            ["grep", *arguments, tmp_path / "server.log"], capture_output=True, check=False
        )
        assert found.stdout, arguments


@pytest.mark.parametrize("alert", ELSEWHERE)
def test_a_second_server_fires_the_alert_on_several(alert, server):
    here = scrape()
    other = {
        (name, frozenset({("instance", "there"), *labels})): value
        for (name, labels), value in ELSEWHERE[alert].items()
    }
    scrapes = Scrapes(here, {**here, **other})

    assert [one for one, rule in RULES.items() if scrapes.fires(rule)] == [alert]
