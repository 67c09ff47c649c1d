"""Draws the Grafana dashboard from the metrics of a real server under load.

Run it as ``make bench PART=dashboard``. It starts two servers, one with thinking budgets and one
with a catalogue, asks both for a minute, scrapes their metrics, and draws every panel of
``docs/grafana.json`` into ``docs/plots/dashboard.svg``, with all servers selected. The queries are
evaluated here as Prometheus does, for the forms that the dashboard has: rates, their sums by label,
ratios of sums, quantiles of a histogram, counts and ages of gauges by label, and a lower bound.
"""

from __future__ import annotations

import math
import random
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import matplotlib.pyplot as plt
import orjson

from benchmarks.stored import FOLDER, store
from benchmarks.svg import save
from sglang_lp.catalogue.file import save as save_catalogue
from support.catalogues import served_index
from support.models import tiny_model
from support.servers.configurations import DECIDED, SERVERS
from support.servers.server import Server, launch

ROOT = Path(__file__).resolve().parents[1]
PANELS = ROOT / "docs" / "grafana.json"
PICTURE = ROOT / "docs" / "plots" / "dashboard.svg"
RESULTS = FOLDER / "dashboard.json"
SECONDS, EVERY, CLIENTS = 60, 2.5, 4
#: Share of contradictions among the requests for a catalogue.
CONTRADICTING = 0.05
#: Of ``rate``: samples before the newest that count.
WINDOW = 5

_SAMPLE = re.compile(r"^(sglang_lp_\w+)(?:\{(.*)\})? (\S+)$")
#: The dashboard's variable, with all servers selected.
_ALL = '{instance=~"$instance"}'
_SUM = re.compile(r"sum(?: by \(([^)]*)\))? ?\(rate\((\w+)\[[^]]*\]\)\)")
_AGE = re.compile(r"time\(\) - min by \(([^)]*)\) \((\w+)\)$")
_COUNT = re.compile(r"count by \(([^)]*)\) \(([^()]+|label_replace\(.*\))\)$")
#: Keeps the part of a label's value that a pattern matches.
_CUT = re.compile(r'label_replace\((\w+), "(\w+)", "\$1", "\2", "(.*)"\)$')


#: Makes the body of a request by chance.
Request = Callable[[random.Random], dict[str, Any]]


class Scrape(NamedTuple):
    """One reading of ``/metrics``: seconds since the first reading, and the samples."""

    at: float
    samples: dict[str, float]


def thinking(chosen: random.Random) -> dict[str, Any]:
    """Return a request for the server with thinking budgets, good or bad."""
    sampling: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 60}
    body: dict[str, Any] = {"input_ids": [4], "sampling_params": sampling}
    match chosen.randrange(6):
        case 0:
            body["custom_logit_processor"] = "calm"
        case 1:
            body["custom_logit_processor"] = "DRYLogitProcessor"
            sampling["custom_params"] = {"dry_multiplier": chosen.choice([0.8, 0.8, 3.0])}
        case 2:
            body["max_thinking_tokens"] = chosen.randrange(2, 30)
        case 3 if chosen.random() < 0.2:
            body["custom_logit_processor"] = '{"callable": "00"}'
        case 4:  # a thought that the model ends
            body["input_ids"] = [4, 50, 5]
    return body


def choosing(chosen: random.Random) -> dict[str, Any]:
    """Return a request for the server with a catalogue: items, beams, or a contradiction."""
    sampling: dict[str, Any] = {"temperature": 0.8, "max_new_tokens": 60}
    body: dict[str, Any] = {"input_ids": [chosen.randrange(2, 1024)], "sampling_params": sampling}
    if chosen.random() < CONTRADICTING:
        body["custom_logit_processor"] = "ChainLogitProcessor"
        links = ["DisallowedTokensLogitsProcessor", "ForcedSequenceLogitProcessor"]
        sampling["custom_params"] = {"chain": links, "0.token_ids": [7], "1.token_ids": [7]}
        return body
    body["custom_logit_processor"] = "CatalogueLogitProcessor"
    params: dict[str, Any] = {"catalogue": "items", "max_items": chosen.randrange(1, 5)}
    if chosen.random() < 0.5:
        params |= {"max_items": 1, "ends_answer": False}
        # Few items are in the set, so some beams end without a token that leads to one.
        params["subset"] = chosen.choice([[], ["few"]])
        sampling |= {"temperature": 0, "max_new_tokens": 3, "beam_width": 8, "n": 2}
    sampling["custom_params"] = params
    return body


def ask(server: Server, request: Request, seed: int, until: float) -> None:
    """Send requests one after another."""
    chosen = random.Random(seed)
    while time.monotonic() < until:
        server.post("/generate", request(chosen))


def scrape(instance: str, url: str, epoch: float) -> dict[str, float]:
    """Return a server's samples, each with the label ``instance``, which Prometheus adds.

    Args:
        instance: Name of the server.
        url: Of the server.
        epoch: Unix time from which timestamps are counted, as the times of readings are.
    """
    text = httpx.get(f"{url}/metrics/", trust_env=False).text
    return {
        f'{one[1]}|instance="{instance}",{one[2] or ""}': float(one[3])
        - epoch * one[1].endswith("_timestamp_seconds")
        for line in text.splitlines()
        if (one := _SAMPLE.match(line))
    }


def _with_catalogue(folder: Path) -> Path:
    """Return a policy with a catalogue."""
    path = folder / "shop.toml"
    path.write_text('[catalogues.items]\nfile = "items.cat"\n')
    save_catalogue(served_index(), folder / "items.cat")
    return path


def record() -> list[Scrape]:
    """Return the readings of two servers under load."""
    arguments, variables = SERVERS["decided"]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        model = tiny_model.make(Path(scratch) / "model")
        kinds = {"first": (DECIDED, thinking), "second": (_with_catalogue(Path(scratch)), choosing)}
        servers = {}
        for name, (policy, _) in kinds.items():
            folder = Path(scratch) / name
            folder.mkdir()
            decides = {**variables, "SGLANG_LP_POLICY": str(policy)}
            servers[name] = stack.enter_context(launch(model, folder, arguments, variables=decides))
        began, epoch = time.monotonic(), time.time()
        clients = [
            threading.Thread(target=ask, args=(servers[name], request, seed, began + SECONDS))
            for name, (_, request) in kinds.items()
            for seed in range(CLIENTS)
        ]
        replaced = threading.Timer(
            SECONDS / 2, save_catalogue, (served_index(1), Path(scratch) / "items.cat")
        )
        replaced.start()
        for client in clients:
            client.start()
        scrapes = []
        while time.monotonic() < began + SECONDS:
            samples = [scrape(name, server.url, epoch) for name, server in servers.items()]
            scrapes.append(Scrape(time.monotonic() - began, {**samples[0], **samples[1]}))
            time.sleep(EVERY)
        for client in [*clients, replaced]:
            client.join()
        return scrapes


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


def draw(scrapes: Sequence[Scrape], file: Path) -> None:
    """Draw every panel at its place."""
    panels = orjson.loads(PANELS.read_bytes())["panels"]
    times = [one.at for one in scrapes[WINDOW:]]
    plt.rcParams.update({"font.size": 7, "svg.hashsalt": "sglang-lp"})
    rows = -(-len(panels) // 2)
    figure, places = plt.subplots(rows, 2, figsize=(12, 2.2 * rows), constrained_layout=True)
    for panel, place in zip(panels, places.flat, strict=False):
        for target in panel["targets"]:
            for name, line in sorted(evaluate(scrapes, target["expr"]).items()):
                place.plot(times, line, label=name or target["legendFormat"], linewidth=1)
        defaults = panel["fieldConfig"]["defaults"]
        place.set_title(panel["title"], loc="left", fontweight="bold")
        place.set_xlim(times[0], times[-1])
        place.set_ylim(bottom=0)
        place.set_xlabel("seconds")
        place.set_ylabel(defaults["custom"]["axisLabel"])
        place.grid(alpha=0.3)
        if place.lines:  # the legend next to the lines, never over them
            place.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=6)
        else:
            said = defaults.get("noValue", "No data")
            place.text(0.5, 0.5, said, ha="center", va="center", transform=place.transAxes)
    save(figure, file)


def main(argv: Sequence[str]) -> int:
    if "--stored" not in argv:
        store([one._asdict() for one in record()], RESULTS)
    scrapes = [Scrape(**one) for one in orjson.loads(RESULTS.read_bytes())]
    draw(scrapes, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
