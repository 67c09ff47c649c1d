"""Costs of structured answers that are complete: the plans of a grammar, and each step of a row.

Run it as ``make bench PART=closing``. It stores the results in ``benchmarks/results/closing.json``
and renews ``docs/performance.md``.
The vocabulary has 150,000 tokens: every byte, pieces of JSON, and made-up words and characters. A
model that writes anything which the grammar allows runs into its limit again and again. Times are
of the thread's processor. All steps are measured again with new plans, and the least time of each
counts, so that other work on the machine does not.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from benchmarks.machine import age, machine
from benchmarks.pages import Part
from benchmarks.tables import duration, table
from benchmarks.text import some_tokens
from sglang_lp.closing.automaton import read
from sglang_lp.closing.plans import Plans
from sglang_lp.closing.row import ClosingRow
from sglang_lp.closing.vocabulary import GrammarVocabulary

__all__ = ["PART"]

SEED = 20_261_127
VOCAB = 150_000
ANSWERS = 60
#: How often everything is measured.
RUNS = 3
#: Room of an answer above the shortest, in tokens.
LEAST_ROOM, MOST_ROOM = 20, 120

_PIECES = (
    '{"',
    '"}',
    '":',
    '": "',
    '", "',
    '","',
    '"},',
    '"}]',
    "}}",
    "]]",
    '[{"',
    '":{"',
    "  ",
    "\n",
)


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


_TEXT, _NUMBER = {"type": "string"}, {"type": "number"}
CASES = {
    "a flat object": _object(name=_TEXT, age={"type": "integer"}, ok={"type": "boolean"}),
    "nested arrays": _object(
        title=_TEXT,
        items={"type": "array", "items": _object(k=_TEXT, tags={"type": "array", "items": _TEXT})},
    ),
    "tool calls": {
        "type": "array",
        "minItems": 1,
        "items": {
            "anyOf": [
                _object(name={"const": name}, arguments=_object(x=_TEXT, y=_NUMBER))
                for name in ("search", "read", "write")
            ]
        },
    },
    "`maxLength` 500": _object(a={**_TEXT, "maxLength": 500}, b=_NUMBER),
    "`minLength` 150": _object(a={**_TEXT, "minLength": 150}, b=_NUMBER),
}


def spelled() -> list[bytes]:
    """Return the bytes of each token; the last is the end of an answer."""
    own = [*(bytes((i,)) for i in range(256)), *(piece.encode() for piece in _PIECES)]
    words = [one for one in some_tokens(random.Random(SEED), VOCAB) if one]
    return [*list(dict.fromkeys([*own, *words]))[: VOCAB - 1], b""]


def seconds() -> float:
    return time.thread_time()


def measure() -> dict[str, Any]:
    import xgrammar

    texts = spelled()
    began = seconds()
    vocabulary = GrammarVocabulary(texts, [len(texts) - 1])
    results: dict[str, Any] = {
        "machine": machine(),
        "vocabulary": len(texts),
        "vocabulary_ms": (seconds() - began) * 1e3,
        "rows": [],
    }
    raw = xgrammar.VocabType.RAW
    info = xgrammar.TokenizerInfo(
        [*texts[:-1], b"<end>"], raw, vocab_size=len(texts), stop_token_ids=[len(texts) - 1]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    for name, schema in CASES.items():
        began = seconds()
        context = compiler.compile_json_schema(orjson.dumps(schema).decode(), max_whitespace_cnt=12)
        compiled = seconds() - began
        planned, runs = [], []
        for _ in range(RUNS):
            began = seconds()
            plans = Plans(read(context), vocabulary, json="whole")
            plans.prepare()
            planned.append(seconds() - began)
            age()
            runs.append(_write(context, plans))
        steps = {
            kind: np.min([run[kind] for run in runs], axis=0).tolist()
            for kind in ("asleep", "near", "fill")
        }
        results["rows"].append(
            {
                "grammar": name,
                "compile_ms": compiled * 1e3,
                "plans_ms": min(planned) * 1e3,
                **{f"{kind}_us": statistics.median(some or [0]) for kind, some in steps.items()},
                "near_p99_us": statistics.quantiles(steps["near"], n=100)[-1],
            }
        )
        print(results["rows"][-1], flush=True)
    return results


def _write(context: Any, plans: Plans) -> dict[str, list[float]]:
    """Write answers, and return microseconds of steps: asleep, near the end, and xgrammar's."""
    import xgrammar

    some = random.Random(SEED)
    size = plans.vocabulary.size
    mask = xgrammar.allocate_token_bitmask(1, size)
    words = mask.numpy()[0]
    steps: dict[str, list[float]] = {"asleep": [], "near": [], "fill": []}
    for _ in range(ANSWERS):
        limit = len(plans.shortest) + some.randint(LEAST_ROOM, MOST_ROOM)
        matcher, row = xgrammar.GrammarMatcher(context), ClosingRow(plans, limit)
        written: list[int] = []
        while not matcher.is_terminated():
            began = seconds()
            matcher.fill_next_token_bitmask(mask)
            filled = seconds()
            sleeps = row.sleeps(len(written), 0)
            if not sleeps:
                row.narrow(words, written)
            kind = "asleep" if sleeps else "near"
            steps[kind].append((seconds() - filled) * 1e6)
            steps["fill"].append((filled - began) * 1e6)
            bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:size]
            token = int(some.choice(np.flatnonzero(bits)))
            assert matcher.accept_token(token)
            written.append(token)
        assert len(written) <= limit
    return steps


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    made = f"{results['vocabulary_ms'] / 1e3:.2f} s"
    head = ("grammar", "xgrammar compiles", "plans", "asleep", "near its end", "99 % under", "fill")
    rows = (
        (
            row["grammar"],
            *(f"{row[key]:.0f} ms" for key in ("compile_ms", "plans_ms")),
            *(duration(row[f"{key}_us"]) for key in ("asleep", "near", "near_p99", "fill")),
        )
        for row in results["rows"]
    )
    before = [
        "",
        f"The bytes of {results['vocabulary']:,} tokens are sorted in {made}, once in a process.",
        "",
    ]
    return "\n".join([*before, *table(head, rows), ""])


PART = Part("closing", "performance.md", page_block)


def main() -> None:
    """Measure, store and renew the page."""
    PART.store(measure())


if __name__ == "__main__":
    main()
