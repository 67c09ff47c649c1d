"""Every alert has its section in the runbook, and both are about metrics that exist."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from scripts.alerts import RULE, write_rule
from sglang_lp.server.gate.metrics import ABOUT, LABELS, NAMES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runbook.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
((GROUP,),) = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text()).values()
ALERTS = {rule["alert"]: rule for rule in GROUP["rules"]}
alerts = pytest.mark.parametrize("alert", ALERTS)

#: Of SGLang itself, on every server with ``--enable-metrics``.
SGLANGS = {"sglang:num_running_reqs"}


def metric_of(name):
    """Return the metric that is scraped under a name, which may be a part of a histogram."""
    return re.sub(r"(?<=_seconds)_(bucket|sum|count)$", "", name)


@alerts
def test_an_alert_has_a_section_with_everything_up_to_its_end(alert):
    said = re.findall(r"^\*\*(Meaning|Look at|Do|Solved)\b", SECTIONS[alert], re.MULTILINE)
    assert said == ["Meaning", "Look at", "Do", "Solved"]


@alerts
def test_an_alert_has_the_address_of_its_section(alert):
    address = ALERTS[alert]["annotations"]["runbook_url"]
    pages = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert address == f"{pages['Homepage']}/blob/main/docs/runbook.md#{alert.lower()}"


def test_the_rule_for_the_operator_of_prometheus_is_made_of_the_alerts():
    assert RULE.read_text() == write_rule(), (
        "deploy/prometheus-rule.yaml is not what the alerts say; write it anew with "
        "`.venv/bin/python -m scripts.alerts`"
    )
    rule = yaml.safe_load(RULE.read_text())
    assert rule["kind"] == "PrometheusRule"
    assert rule["spec"]["groups"] == [GROUP]


def test_every_section_about_an_alert_is_about_one_that_exists():
    assert [name for name in SECTIONS if name.startswith("Sglang")] == [*ALERTS]


@alerts
def test_the_expression_of_an_alert_names_metrics_and_labels_that_exist(alert):
    expression = ALERTS[alert]["expr"]
    named = re.findall(r"\b(sglang[_:]\w+)(?:\{(\w+)[=!~]+)?", expression)
    assert named
    for name, label in named:
        assert metric_of(name) in {*NAMES, *SGLANGS}
        assert not label or label in LABELS[metric_of(name)]
    of_prometheus = {"instance", "le"}
    labels = {label for labels in LABELS.values() for label in labels}
    for grouped in re.findall(r"(?:by|on) \(([^)]*)\)", expression):
        assert {one.strip() for one in grouped.split(",")} <= labels | of_prometheus


def test_every_metric_of_the_page_exists():
    assert {metric_of(name) for name in re.findall(r"\bsglang_lp_\w+", PAGE)} <= {*NAMES}


def test_every_help_is_a_sentence_that_names_no_metric():
    for about in ABOUT.values():
        assert about.endswith(".")
        assert "sglang_lp_" not in about
