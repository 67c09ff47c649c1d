"""Renews all pages from the stored results, without measuring: ``python -m benchmarks.renew``."""

from __future__ import annotations

from benchmarks import closing, complete, matrix, text
from benchmarks.adapters import measure as adapters
from benchmarks.bounds import report as bounds
from benchmarks.catalogue import measure as catalogue
from benchmarks.cost import arrivals, forms, phases, releases, rollouts, sleep, turns, watch
from benchmarks.cost import report as cost
from benchmarks.devices import report as gpu
from benchmarks.devices import scale
from benchmarks.drafts import at_work
from benchmarks.drafts import report as drafts
from benchmarks.evidence import plots
from benchmarks.evidence import report as evidence
from benchmarks.rules import measure as rules
from benchmarks.rules import strict

__all__ = ["PARTS"]

PARTS = (
    *(
        one.PART
        for one in (
            adapters,
            arrivals,
            at_work,
            bounds,
            catalogue,
            closing,
            complete,
            cost,
            drafts,
            evidence,
            forms,
            matrix,
            phases,
            releases,
            rollouts,
            rules,
            scale,
            sleep,
            strict,
            text,
            turns,
            watch,
        )
    ),
    gpu.ENGINE,
    gpu.STEPS,
)

if __name__ == "__main__":
    for part in PARTS:
        part.renew()
    cost.plot(cost.PART.stored())
    plots.plot(evidence.PART.stored())
