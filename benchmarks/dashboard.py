"""Draws the Grafana dashboard from the metrics of a real server under load.

Run it as ``make bench PART=dashboard``. It starts two servers, one with thinking budgets and one
with a catalogue, asks both for a minute, scrapes their metrics, and draws every panel of
``docs/grafana.json`` into ``docs/plots/dashboard.svg``, with all servers selected.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import matplotlib.pyplot as plt
import orjson

from benchmarks.stored import FOLDER, store
from benchmarks.svg import save
from sglang_lp.catalogue.file import save as save_catalogue
from support.catalogues import served_index
from support.models import tiny_model
from support.prometheus import WINDOW, Scrape, evaluate
from support.servers.configurations import DECIDED, SERVERS
from support.servers.server import Server, launch

ROOT = Path(__file__).resolve().parents[1]
PANELS = ROOT / "docs" / "grafana.json"
PICTURE = ROOT / "docs" / "plots" / "dashboard.svg"
RESULTS = FOLDER / "dashboard.json"
SECONDS, EVERY, CLIENTS = 60, 2.5, 4
#: Share of contradictions among the requests for a catalogue.
CONTRADICTING = 0.05

_SAMPLE = re.compile(r"^(sglang_lp_\w+)(?:\{(.*)\})? (\S+)$")

#: Makes the body of a request by chance.
Request = Callable[[random.Random], dict[str, Any]]


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
