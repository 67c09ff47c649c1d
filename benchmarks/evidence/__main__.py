"""What processors do on a model that speaks: ``make evidence``, an hour at most.

Each server is started once, and asked what there is to ask it in every section, prompt by prompt,
so that all arms have come as far when the time of a section is over. Answers are kept in
``.cache/evidence.jsonl``: a second run goes on where the first one was, and has more prompts. The
results go to ``benchmarks/results/evidence.json`` and to ``docs/evidence.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.evidence import plots, report
from benchmarks.evidence.answers import Kept
from benchmarks.evidence.arms import OURS, SECTIONS, STOCK
from benchmarks.evidence.asking import SERVERS, ask_all, start
from benchmarks.evidence.findings import findings
from benchmarks.evidence.speed import speeds
from benchmarks.machine import machine
from demo.speaking import find_speaking_model
from support.processes import EngineError
from support.settings import ROOT

ANSWERS = ROOT / ".cache/evidence.jsonl"
MINUTES = 55
#: Of the time, what each measurement of the speed may take.
SPEED = 0.05


def main() -> int:
    """Ask, store the findings, and renew the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="%(default)s")
    seconds = 60 * parser.parse_args().minutes
    if find_speaking_model() is None:
        sys.exit("there is no model that speaks; run make evidence, which makes it")
    kept = Kept(ANSWERS)
    speed: dict[str, Any] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        for server in SERVERS:
            try:
                _visit(server, kept, seconds, progress, speed)
            except EngineError as error:
                progress.console.print(f"{server}: {error}")
    stored = report.PART.stored() if report.PART.file.exists() else {}
    results = {
        "machine": machine(),
        **findings(kept),
        "speed": stored.get("speed", {}) | speed,
    }
    report.PART.store(results)
    plots.plot(results)
    print(report.page_block(results))
    return 0


def _visit(
    server: str, kept: Kept, seconds: float, progress: Progress, speed: dict[str, Any]
) -> None:
    """Ask one server what is to be asked, as long as its part of the time lasts."""
    started = time.monotonic()
    late = 0.0
    with start(server) as urls:
        for section, (asks_of, share) in SECTIONS.items():
            asks = list(asks_of(kept))
            mine = [ask for ask in asks if ask.server == server]
            if not mine:
                continue
            # A start counts for the server's first section.
            begun = started if not late else time.monotonic()
            late = begun + seconds * share * (1 - 2 * SPEED) * len(mine) / len(asks)
            bar = progress.add_task(f"{server}: {section}", total=len(mine))
            done = sum(kept.get(ask) is not None for ask in mine)
            progress.update(bar, completed=done)

            def tick(bar: Any = bar) -> None:
                progress.advance(bar)

            ask_all(urls, mine, kept, late, tick)
        if server in {OURS, STOCK}:
            speed[server] = speeds(urls[0], server, time.monotonic() + seconds * SPEED)


if __name__ == "__main__":
    sys.exit(main())
