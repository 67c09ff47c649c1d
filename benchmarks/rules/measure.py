"""The cost of the operator's decisions for a request, in each of the two gates.

``make bench PART=rules`` prints a table, stores it in ``benchmarks/results/rules.json`` and puts it
into ``docs/operating.md``. Times are CPU times for one request in one gate: medians of rounds in
which the cases take turns. The gates of the HTTP process and of the scheduler do the same work; the
scheduler's also makes the row.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams

from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp.builtins import DisallowedTokensLogitsProcessor, ThinkingBudgetLogitProcessor
from sglang_lp.policy.sections import Ceiling, Chosen
from sglang_lp.served_model import ServedModel
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler.gate import SchedulerGate
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.trust import Policy

ROUNDS, REQUESTS = 41, 200

IDS = {"thinking_start_token_id": 1, "thinking_end_token_id": 2}
DEFAULT = Chosen(processor="ThinkingBudgetLogitProcessor", params={**IDS, "thinking_budget": 512})
BAN = Chosen(processor="DisallowedTokensLogitsProcessor", params={"token_ids": [7, 8]})
CAPPED = {"thinking_budget": Ceiling(at_most=4096)}

NOTHING = (None, None)
BUDGET = (ThinkingBudgetLogitProcessor.to_str(), {**IDS, "thinking_budget": 100})
BANS = (DisallowedTokensLogitsProcessor.to_str(), {"token_ids": [5]})

#: Policies and requests.
CASES: dict[str, tuple[Policy, tuple[Any, Any]]] = {
    "no decisions, no processor": (Policy(), NOTHING),
    "no decisions, a ban": (Policy(), BANS),
    "no decisions, a budget": (Policy(), BUDGET),
    "a ceiling on something else, a ban": (
        Policy(ceilings={"dry_multiplier": Ceiling(at_most=2)}),
        BANS,
    ),
    "a default budget, no processor": (Policy(defaults=DEFAULT), NOTHING),
    "a ceiling, a budget": (Policy(defaults=DEFAULT, ceilings=CAPPED), BUDGET),
    "a ceiling, a ban": (Policy(defaults=DEFAULT, ceilings=CAPPED), BANS),
    "a ban for everybody, no processor": (Policy(always=(BAN,)), NOTHING),
    "all of these, a ban": (Policy(defaults=DEFAULT, ceilings=CAPPED, always=(BAN,)), BANS),
}


def made(payload: Any, custom_params: Any) -> Req:
    """Return SGLang's request with these fields."""
    sampling = SamplingParams(max_new_tokens=512, custom_params=custom_params)
    sampling.normalize(None)
    prompt = array("q", [1, 2, 3])
    return Req("1", "", prompt, sampling, vocab_size=1000, custom_logit_processor=payload)


def gate_of(policy: Policy) -> Callable[..., None]:
    guard = Guard(policy)
    guard.server.vocab_size = 1000
    guard.rules.fit(ServedModel(None, 1000))
    gate: Callable[..., None] = SchedulerGate(guard, PendingResults(), Arrivals()).admit_req
    return gate


def seconds(gate: Callable[..., None], asked: tuple[Any, Any]) -> float:
    requests = [made(*asked) for _ in range(REQUESTS)]
    began = time.process_time()
    for request in requests:
        gate(None, request)
    return (time.process_time() - began) / REQUESTS


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    rows = ((name, f"{each:.1f}") for name, each in results["gate_us"].items())
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, SGLang {on['sglang']}.",
        f"The median of {ROUNDS} rounds; load average {on['load']}.",
        "",
        *table(("what is decided, what a request brings", "µs"), rows),
    ]
    return "\n".join(lines)


PART = Part("rules", "operating.md", page_block)


def main() -> int:
    on = machine()
    gates = {name: (gate_of(policy), asked) for name, (policy, asked) in CASES.items()}
    rounds: dict[str, list[float]] = {name: [] for name in gates}
    gc.disable()
    for _ in range(ROUNDS):
        for name, (gate, asked) in gates.items():
            rounds[name].append(seconds(gate, asked) * 1e6)
    gc.enable()
    micros = {name: round(statistics.median(times), 2) for name, times in rounds.items()}
    for name, each in micros.items():
        print(f"{name:<42} {each:>9.2f} µs")
    PART.store({"machine": on, "gate_us": micros})
    return 0


if __name__ == "__main__":
    sys.exit(main())
