"""Effects of processors on a model that speaks: ``make evidence``, an hour at most.

Each server starts once, and answers all sections prompt by prompt, so that all arms of a section
have the same prompts when its time is over. ``.cache/evidence.jsonl`` keeps the answers: a second
run continues the first and reaches more prompts. The results go to
``benchmarks/results/evidence.json`` and to ``docs/evidence.md``.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.evidence import plots, report
from benchmarks.evidence.answers import Kept
from benchmarks.evidence.arms import SECTIONS
from benchmarks.evidence.asking import SERVERS, ask_all, start
from benchmarks.evidence.findings import findings
from benchmarks.evidence.sharing import MEASURED, Time, unanswered
from benchmarks.evidence.speed import speeds
from benchmarks.machine import machine
from demo.speaking import find_speaking_model
from support.processes import EngineError
from support.settings import ROOT

ANSWERS = ROOT / ".cache/evidence.jsonl"
MINUTES = 55


def main() -> int:
    """Ask, store the findings, and renew the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="%(default)s")
    seconds = 60 * parser.parse_args().minutes
    if find_speaking_model() is None:
        sys.exit("there is no model that speaks; run make evidence, which makes it")
    kept = Kept(ANSWERS)
    time = Time(seconds, [*SERVERS], kept)
    speed: dict[str, Any] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        for server in SERVERS:
            try:
                _visit(server, kept, time, progress, speed)
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


def _visit(server: str, kept: Kept, time: Time, progress: Progress, speed: dict[str, Any]) -> None:
    """Ask one server what is to be asked, as long as its part of the time lasts."""
    if server not in MEASURED and not any(unanswered(kept, server, one) for one in SECTIONS):
        return
    if time.is_over:  # a start takes minutes on a slow machine
        progress.console.print(f"{server}: not reached in this run")
        return
    with start(server) as urls:
        for section, (asks_of, _) in SECTIONS.items():
            every = sum(ask.server == server for ask in asks_of(kept))
            if not (asks := unanswered(kept, server, section)):
                continue
            bar = progress.add_task(
                f"{server}: {section}", total=every, completed=every - len(asks)
            )

            def tick(bar: Any = bar) -> None:
                progress.advance(bar)

            ask_all(urls, asks, kept, time.for_section(server, section), tick)
        if server in MEASURED:
            speed[server] = speeds(urls[0], server, time.for_speed(server))


if __name__ == "__main__":
    sys.exit(main())
