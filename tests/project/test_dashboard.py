"""The Grafana dashboard and the page about operating a server are about metrics that exist."""

import re
from pathlib import Path

import orjson
import pytest

from sglang_lp.rules import Rules
from sglang_lp.server.metrics import NAMES
from sglang_lp.trust import Policy, Verifier
from support.trained import byte_level

DOCS = Path(__file__).parents[2] / "docs"
PANELS = orjson.loads((DOCS / "grafana.json").read_bytes())["panels"]
PAGE = (DOCS / "operating.md").read_text()

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
            grouped = re.findall(r"by \(([^)]*)\) \(rate", target["expr"])
            assert {*labels} <= {name.strip() for one in grouped for name in one.split(",")}


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


def test_the_page_explains_every_metric_and_no_other():
    assert metrics_of(PAGE) == {*NAMES}


@pytest.mark.parametrize("example", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_every_policy_on_the_page_can_be_served(example, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(example)
    policy = Policy.from_toml(path)
    tokenizer = byte_level(["a b c"], 300)
    tokenizer.add_tokens(["<think>", "</think>"])

    rules = Rules(policy, Verifier(policy).resolve)
    rules.fit(tokenizer, 400)
    assert not rules.is_empty
