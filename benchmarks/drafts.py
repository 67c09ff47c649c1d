"""What a verify step of speculative decoding adds: ``python -m benchmarks.drafts``.

The hooks are called as SGLang calls them: before the verify forward, and in ``eagle_sample``, where
the grammar's mask stands. The few operations on the logits are left out, which a GPU does beside
the host: what is left is the toolkit's own code. Between calls every request generates tokens; that
is not counted.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.cases import (
    NEWLINE,
    VOCAB,
    Batch,
    Case,
    forced,
    idle,
    interleave,
    median,
    ngram,
    per_step,
)
from benchmarks.cost import ROUNDS, THREADS, machine
from benchmarks.stored import FOLDER, store
from sglang_lp._engine.plan import Plan
from sglang_lp.server.pending import PendingResults
from sglang_lp.server.sampling import Steps
from sglang_lp.server.speculation import make_capture, make_verify

ROWS = 16
#: The newest token and four drafted ones.
NODES = 5
#: Tokens that each step commits, of which the last is no draft.
ACCEPTED = 3
STEPS = 60
#: Microseconds: of a whole step while everybody sleeps, and of one node.
IDLE_LIMIT, LIMIT, NGRAM_LIMIT = 50.0, 15.0, 40.0


def _forced_sequence() -> Case:
    def params(_row: int) -> Mapping[str, Any]:
        return {"token_ids": [5], "eos_token_ids": [NEWLINE]}

    name = "ForcedSequenceLogitProcessor"
    return Case(f"forced-sequence-{ROWS}", name, params, ROWS, 1024, stock_serves=False)


def _trees() -> dict[str, Any]:
    """Return what a verify step drafts: a chain for each request."""
    token_ids = [
        [random.Random(row).randrange(1000, VOCAB) for _ in range(NODES)] for row in range(ROWS)
    ]
    return {
        "draft_token_num": NODES,
        "draft_token": torch.tensor(token_ids).view(-1),
        "retrieve_next_token": torch.tensor([[*range(1, NODES), -1]] * ROWS),
        "retrieve_next_sibling": torch.full((ROWS, NODES), -1),
    }


class Step:
    """A verify step of a batch, as SGLang makes it."""

    def __init__(self, case: Case) -> None:
        self.batch = Batch(case)
        steps = Steps(PendingResults())
        self._capture = make_capture(steps.may_act)
        self._verify = make_verify(steps.run_drafts)
        self._logits = torch.empty(ROWS * NODES, VOCAB)
        self._trees = _trees()
        self._sglangs = SimpleNamespace(
            sampling_info=self.batch.info,
            forward_mode=SimpleNamespace(is_idle=lambda: False),
            has_grammar=False,
        )

    def commit(self) -> None:
        """Let every request get the tokens of a step; SGLang makes new drafts."""
        for _ in range(ACCEPTED):
            self.batch.decode()
        self._sglangs.spec_info = SimpleNamespace(**self._trees)

    def run(self) -> None:
        """Call both hooks, and the mask that the second one returns."""
        self._capture(None, self._sglangs, is_verify=True)
        (_, _, _, mask), _ = self._verify(self._sglangs.spec_info, self._sglangs, None)
        mask.apply(self._logits)


def measure() -> list[dict[str, Any]]:
    """Measure every case."""
    limits = {
        idle(ROWS, 16_384): IDLE_LIMIT,
        forced(ROWS): LIMIT,
        _forced_sequence(): LIMIT,
        ngram(ROWS, 1024, 3, 90, "loop"): NGRAM_LIMIT,
        ngram(ROWS, 16_384, 3, 1 << 15, "loop"): NGRAM_LIMIT,
    }
    results = []
    for case, limit in limits.items():
        step = Step(case)
        step.commit()
        step.run()
        sides: dict[str, Callable[[], float]] = {
            "step": partial(per_step, step.run, STEPS, step.commit)
        }
        with patch.object(Plan, "apply", lambda _plan, _logits: None):
            seconds = median(interleave(sides, ROUNDS)["step"])
        unit = 1 if limit is IDLE_LIMIT else ROWS * NODES
        results.append(
            {
                "key": case.key,
                "of": "step" if unit == 1 else "node",
                "us": round(seconds * 1e6 / unit, 2),
                "limit_us": limit,
            }
        )
    return results


def main() -> int:
    """Measure, print and store the results."""
    torch.set_num_threads(THREADS)
    cases = measure()
    store(
        {"machine": machine(), "rows": ROWS, "nodes": NODES, "rounds": ROUNDS, "cases": cases},
        FOLDER / "drafts.json",
    )
    for case in cases:
        verdict = "ok" if case["us"] <= case["limit_us"] else "TOO MUCH"
        print(
            f"{case['key']:<32} {case['us']:8.2f} µs a {case['of']}, "
            f"at most {case['limit_us']:g}: {verdict}"
        )
    return int(any(case["us"] > case["limit_us"] for case in cases))


if __name__ == "__main__":
    raise SystemExit(main())
