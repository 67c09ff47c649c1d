"""The Grafana dashboard and the page about monitoring are about metrics that exist."""

import re
from pathlib import Path

import orjson
import pytest

from sglang_lp.policy import Rules
from sglang_lp.served_model import ServedModel
from sglang_lp.server.gate.metrics import ABOUT, NAMES
from sglang_lp.trust import Policy, Verifier
from support.models.vocabularies import byte_level
from support.prometheus import Scrape, evaluate

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = orjson.loads((DOCS / "grafana.json").read_bytes())
PANELS = DASHBOARD["panels"]
PAGE = (DOCS / "monitoring.md").read_text()
DECISIONS = (DOCS / "operating.md").read_text()

#: What a histogram is scraped as.
PARTS = re.compile(r"(?<=_seconds)_(bucket|sum|count)$")


def metrics_of(text):
    found = re.findall(r"\bsglang_lp_\w+", text)
    return {PARTS.sub("", name) for name in found}


def test_every_query_names_metrics_that_exist():
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]

    assert all(metrics_of(query) for query in queries)
    assert {name for query in queries for name in metrics_of(query)} == {*NAMES}


def test_every_query_is_whole():
    for panel in PANELS:
        for target in panel["targets"]:
            for opening, closing in ("()", "[]", "{}"):
                assert target["expr"].count(opening) == target["expr"].count(closing)
            labels = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            assert {*labels} <= {name.strip() for one in grouped for name in one.split(",")}


def test_every_query_is_about_the_chosen_servers():
    (variable,) = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    assert (variable["name"], variable["multi"], variable["includeAll"]) == ("instance", True, True)
    assert metrics_of(variable["query"]) == {"sglang_lp_info"}
    for panel in PANELS:
        for target in panel["targets"]:
            found = re.findall(r"(sglang_lp_\w+)(\{.*?\})?", target["expr"])
            assert {chosen for _, chosen in found} == {'{instance=~"$instance"}'}


def scrapes():
    """Return the metrics of two servers whose counters grow evenly, the second's twice as fast."""
    kinds = {
        'sglang_lp_info|version="1",policy="0123456789abcdef"': 0.0,
        'sglang_lp_requests_total|processor="A"': 2.0,
        'sglang_lp_requests_total|processor="B"': 3.0,
        'sglang_lp_thinking_blocks_total|ended="budget"': 2.0,
        'sglang_lp_thinking_blocks_total|ended="model"': 2.0,
        "sglang_lp_thinking_tokens_total|": 40.0,
        'sglang_lp_refusals_total|gate="admission",reason="denied"': 1.0,
        "sglang_lp_forced_tokens_total|": 5.0,
        'sglang_lp_faults_total|processor="A",kind="processor"': 0.0,
        'sglang_lp_faults_total|processor="B",kind="toolkit"': 1.0,
        'sglang_lp_contradictions_total|processor="B"': 2.0,
        "sglang_lp_awaited_steps_total|": 1.0,
        "sglang_lp_step_seconds_count|": 4.0,
        'sglang_lp_step_seconds_bucket|le="0.001"': 2.0,
        'sglang_lp_step_seconds_bucket|le="0.002"': 4.0,
        'sglang_lp_step_seconds_bucket|le="+Inf"': 4.0,
        'sglang_lp_catalogue_items_total|catalogue="c"': 3.0,
        'sglang_lp_catalogue_timestamp_seconds|catalogue="c"': -1.0,
        'sglang_lp_catalogue_versions_total|gate="g",catalogue="c",outcome="taken_up"': 1.0,
        'sglang_lp_beams_total|ended="dead"': 1.0,
    }
    names = {key: key.replace("|", '|instance="{}",') for key in kinds}
    return [
        Scrape(
            at,
            {
                names[key].replace("{}", server): each * speed * at
                for server, speed in (("first", 1), ("second", 2))
                for key, each in kinds.items()
            },
        )
        for at in range(9)
    ]


def test_the_picture_evaluates_every_query_as_prometheus_does():
    lines = {
        panel["title"]: [evaluate(scrapes(), target["expr"]) for target in panel["targets"]]
        for panel in PANELS
    }
    last = {
        title: [{name: line[-1] for name, line in one.items()} for one in found]
        for title, found in lines.items()
    }

    assert last == {
        "Requests by processor": [{"A": 6.0, "B": 9.0}],
        "Thinking blocks by what ended them": [{"budget": 6.0, "model": 6.0}],
        "Tokens of a thinking block": [{"": 10.0}],
        "Forced tokens": [{"": 15.0}],
        "Refusals": [{"admission: denied": 3.0}],
        "Faults": [{"B: toolkit": 3.0}],
        # Half of the steps are below 1 ms; of the rest, 98 in 100 are below 1.98 ms.
        "Time of a step in processors": [{"": pytest.approx(0.001)}, {"": pytest.approx(0.00198)}],
        "Steps that waited for tokens": [{"": 0.25}],
        "Contradictions": [{"B": 6.0}],
        "Servers by version and policy": [{"1: 0123456789ab": 2.0}],
        "Items in answers": [{"c": 9.0}],
        # Of the older file, the second server's: 8 - (-16).
        "Age of catalogues": [{"c": 24.0}],
        "New files of catalogues": [{"c: taken_up": 3.0}],
        "Beams": [{"dead": 3.0}],
    }


def test_panels_have_places_of_their_own():
    cells = [
        (x, y)
        for panel in PANELS
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(cells) == len({*cells})
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_help_of_thinking_blocks_names_every_end():
    source = (DOCS.parent / "sglang_lp/builtins/thinking/block_report.py").read_text()
    ends = {*re.findall(r'(?:ended =|return|else) "(\w+)"', source)}
    helped = ABOUT["sglang_lp_thinking_blocks_total"].rpartition(": ")[2].rstrip(".").split(", ")
    assert len(ends) == 6
    assert {*helped} == {*ends, "open"}


def test_the_page_explains_every_metric_and_no_other():
    assert metrics_of(PAGE) == {*NAMES}


@pytest.mark.parametrize("example", re.findall(r"```toml\n(.*?)```", DECISIONS, re.DOTALL))
def test_every_policy_on_the_page_can_be_served(example, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(example)
    policy = Policy.from_toml(path)
    tokenizer = byte_level(["a b c"], 300)
    tokenizer.add_tokens(["<think>", "</think>"])

    rules = Rules(policy, Verifier(policy).resolve)
    rules.fit(ServedModel(tokenizer, 400, (0,)))
    assert policy.fields or not rules.is_empty


def test_every_panel_says_what_it_counts_and_what_it_means_to_be_empty():
    may_be_empty = {
        panel["title"] for panel in PANELS if "noValue" in panel["fieldConfig"]["defaults"]
    }

    assert all(panel["fieldConfig"]["defaults"]["custom"]["axisLabel"] for panel in PANELS)
    always = {
        "Requests by processor",
        "Time of a step in processors",
        "Steps that waited for tokens",
    }
    assert {panel["title"] for panel in PANELS} - may_be_empty == {
        *always,
        "Servers by version and policy",
    }
