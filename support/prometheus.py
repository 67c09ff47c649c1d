"""Evaluates queries on readings of ``/metrics``, as Prometheus does.

It knows the forms that the dashboard has: rates, their sums by label, ratios of sums, quantiles of
a histogram, counts and ages of gauges by label, and a lower bound.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["WINDOW", "Scrape", "evaluate", "quantiles"]

#: Of ``rate``: samples before the newest that count.
WINDOW = 5

#: The dashboard's variable, with all servers selected.
_ALL = '{instance=~"$instance"}'
_SUM = re.compile(r"sum(?: by \(([^)]*)\))? ?\(rate\((\w+)\[[^]]*\]\)\)")
_AGE = re.compile(r"time\(\) - min by \(([^)]*)\) \((\w+)\)$")
_COUNT = re.compile(r"count by \(([^)]*)\) \(([^()]+|label_replace\(.*\))\)$")
#: Keeps the part of a label's value that a pattern matches.
_CUT = re.compile(r'label_replace\((\w+), "(\w+)", "\$1", "\2", "(.*)"\)$')


class Scrape(NamedTuple):
    """One reading of ``/metrics``: seconds since the first reading, and the samples."""

    at: float
    samples: dict[str, float]


def names_in(labels: str) -> list[str]:
    """Return the names of a list of labels."""
    return [name.strip() for name in labels.split(",") if name]


def keys_of(scrapes: Sequence[Scrape], metric: str) -> set[str]:
    """Return the keys of a metric's samples."""
    return {key for one in scrapes for key in one.samples if key.partition("|")[0] == metric}


def told_apart(
    key: str, labels: Sequence[str], patterns: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the values of labels of one key, of some the first group of a pattern."""
    given = dict(re.findall(r'(\w+)="([^"]*)"', key))
    for name, pattern in patterns.items():
        if found := re.fullmatch(pattern, given[name]):
            given[name] = found[1]
    return ": ".join(given[name] for name in labels)


def counts(scrapes: Sequence[Scrape], metric: str, labels: Sequence[str]) -> dict[str, list[float]]:
    """Return ``count by (labels) (metric)`` at every reading but the first ``WINDOW``."""
    counted: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(scrapes) - WINDOW))
    cut = _CUT.match(metric)
    metric, patterns = (cut[1], {cut[2]: cut[3]}) if cut else (metric, {})
    for key in keys_of(scrapes, metric):
        line = counted[told_apart(key, labels, patterns)]
        for i in range(WINDOW, len(scrapes)):
            line[i - WINDOW] += key in scrapes[i].samples
    return dict(counted)


def ages(scrapes: Sequence[Scrape], metric: str, labels: Sequence[str]) -> dict[str, list[float]]:
    """Return ``time() - min by (labels) (metric)`` at every reading but the first ``WINDOW``."""
    aged: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(scrapes) - WINDOW))
    for key in keys_of(scrapes, metric):
        line = aged[told_apart(key, labels)]
        for i, one in enumerate(scrapes[WINDOW:]):
            line[i] = max(line[i], one.at - one.samples.get(key, one.at))
    return dict(aged)


def rates(scrapes: Sequence[Scrape], metric: str, labels: Sequence[str]) -> dict[str, list[float]]:
    """Return ``sum by (labels) (rate(metric))`` at every reading but the first ``WINDOW``."""
    summed: dict[str, list[float]] = defaultdict(lambda: [0.0] * (len(scrapes) - WINDOW))
    for key in keys_of(scrapes, metric):
        line = summed[told_apart(key, labels)]
        for i in range(WINDOW, len(scrapes)):
            old, new = scrapes[i - WINDOW], scrapes[i]
            grown = new.samples.get(key, 0.0) - old.samples.get(key, 0.0)
            line[i - WINDOW] += grown / (new.at - old.at)
    return dict(summed)


def evaluate(scrapes: Sequence[Scrape], query: str) -> Mapping[str, list[float]]:
    """Return the lines of a query by what tells them apart."""
    query = query.replace(_ALL, "")
    if query.endswith(" > 0"):
        lines = evaluate(scrapes, query.removesuffix(" > 0"))
        return {name: line for name, line in lines.items() if any(at > 0 for at in line)}
    if oldest := _AGE.match(query):
        return ages(scrapes, oldest[2], names_in(oldest[1]))
    if gauge := _COUNT.match(query):
        return counts(scrapes, gauge[2], names_in(gauge[1]))
    if quantile := re.match(r"histogram_quantile\(([\d.]+), (.*)\)$", query):
        return {"": quantiles(float(quantile[1]), evaluate(scrapes, quantile[2]))}
    sums = [rates(scrapes, one[2], names_in(one[1] or "")) for one in _SUM.finditer(query)]
    if " / " not in query:
        return sums[0]
    above, below = (next(iter(one.values())) for one in sums)
    return {"": [a / b if b else math.nan for a, b in zip(above, below, strict=True)]}


def quantiles(q: float, by_bound: Mapping[str, list[float]]) -> list[float]:
    """Return a quantile at each time, linear within a bucket."""
    bounds = sorted(by_bound, key=float)
    found = []
    for i in range(len(by_bound[bounds[0]])):
        counts = [by_bound[bound][i] for bound in bounds]
        rank, lower, below = q * counts[-1], 0.0, 0.0
        value = math.nan
        for bound, count in zip(bounds, counts, strict=True):
            if count >= rank > below:
                upper = float(bound)
                share = (rank - below) / (count - below)
                value = lower if math.isinf(upper) else lower + (upper - lower) * share
                break
            lower, below = float(bound), count
        found.append(value)
    return found
