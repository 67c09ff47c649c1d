"""The cost of a step with rules in a phase and with chains: ``python -m benchmarks.cost.phases``.

A rule that cannot act should cost what an idle row costs, and a rule in its open phase what the
same rule costs everywhere. Each is measured everywhere, in an open phase and in a closed one.
"""

from __future__ import annotations

import sys
from time import thread_time
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.cost.cases import median
from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from sglang_lp import builtins
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.testing.playing import Batch, Played
from support.models.vocabularies import byte_level

if TYPE_CHECKING:
    from collections.abc import Mapping

ROWS, STEPS, ROUNDS, VOCAB = 64, 60, 9, 340
#: Most times the cost of the rule everywhere, or of an idle row.
MOST = 1.5

_TOKENIZER = byte_level(["the cat sat, 12 mats", "a cat and a mat, a hat and a bat"] * 9, 330)
_TOKENIZER.add_tokens(["<think>", "</think>"])
_A, _B, _C, _D = _TOKENIZER.encode("the cat, 12").ids[:4]

#: Class and parameters of each rule, and how many of it a chain runs; 1 without a chain.
RULES: dict[str, tuple[str, dict[str, Any], int]] = {
    "minimum length": (
        "MinLengthLogitProcessor",
        {"min_tokens": 10_000, "eos_token_ids": [0]},
        1,
    ),
    "bans": ("DisallowedTokensLogitsProcessor", {"token_ids": [_A, _B]}, 1),
    "allowed tokens": ("AllowedTokensLogitProcessor", {"token_ids": [_A, _B, _C, _D]}, 1),
    "chain of eight bans": ("DisallowedTokensLogitsProcessor", {"token_ids": [_A, _B]}, 8),
    "bad words": ("BadWordsLogitProcessor", {"words": ["zzz"]}, 1),
}
#: Every token of the answers is outside of thinking.
PHASES = {"everywhere": None, "open": "answer", "closed": "thinking"}


def _params(rule: str, where: str | None) -> tuple[str, dict[str, Any]]:
    name, params, count = RULES[rule]
    params = params if where is None else {**params, "where": where}
    if count == 1:
        return name, params
    given: dict[str, Any] = {"chain": [name] * count}
    for place in range(count):
        given |= {f"{place}.{key}": value for key, value in params.items()}
    return "ChainLogitProcessor", given


def _microseconds(name: str, params: Mapping[str, Any]) -> float:
    """Return the microseconds of a step, the median of the runs."""
    played = [
        Played(getattr(builtins, name), params, [_D], tokenizer=_TOKENIZER, vocab_size=VOCAB)
        for _ in range(ROWS)
    ]
    batch, every, runs = Batch(), [one.custom_params for one in played], []
    for _ in range(ROUNDS):
        spent = 0.0
        for _ in range(STEPS):
            logits = torch.zeros(ROWS, VOCAB)
            began = thread_time()
            if not batch.step_asleep(logits, every, 1, newest=tuple):
                batch.step(logits, rows_of(every), every)
            spent += thread_time() - began
            for one in played:
                one.source.append(_D)
        runs.append(spent / STEPS * 1e6)
    return round(median(runs), 1)


def measure() -> list[dict[str, Any]]:
    """Return the microseconds of a step of each rule in each phase."""
    return [
        {"rule": rule}
        | {phase: _microseconds(*_params(rule, where)) for phase, where in PHASES.items()}
        for rule in RULES
    ]


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on, cases = results["machine"], results["cases"]
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}; {ROWS} rows.",
        f"Processor time of a step, the median of {ROUNDS} runs; load average {on['load']}.",
        "",
    ]
    rows = ((case["rule"], *(f"{case[phase]:.1f} µs" for phase in PHASES)) for case in cases)
    head = ("rule", "everywhere", "in its phase while open", "in its phase while closed")
    return "\n".join([*lines, *table(head, rows)])


PART = Part("phases", "performance.md", page_block)


def main() -> int:
    """Measure, store the results, renew the page and print its table."""
    torch.set_num_threads(1)
    cases = measure()
    results = {"machine": machine(), "cases": cases}
    PART.store(results)
    print(page_block(results))
    sleeps = [case for case in cases if case["rule"] != "bad words"]  # which reads tokens
    idle = min(case["closed"] for case in sleeps)
    return int(
        any(case["open"] > MOST * case["everywhere"] for case in sleeps)
        or any(case["closed"] > MOST * idle for case in sleeps)
    )


if __name__ == "__main__":
    sys.exit(main())
