"""Results of a GPU, from the records of its scripts: ``python -m benchmarks.devices.report FILE``.

A file is what ``benchmarks.devices.engine`` or ``benchmarks.devices.gpu`` wrote on a machine with a
GPU. Its figures are stored, and the pages with them are renewed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.pages import Part
from benchmarks.tables import table

__all__ = ["ENGINE", "STEPS", "engine_results", "main", "step_results"]

_ARMS = {"stock": "SGLang", "toolkit": "sglang-lp"}
_FIGURES = (
    *("engine", "arm", "requests", "prompt_tokens", "tokens", "step_ms", "slower_ms"),
    *("arrival_ms", "decode_ms", "wrong"),
)
_TIMES = "host_us", "done_us", "fill_us"
_LONG = 1024


def engine_results(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results to store, of the records of ``benchmarks.devices.engine``."""
    head = next(one for one in records if "device" in one)
    return {
        **{name: head[name] for name in ("device", "torch", "sglang")},
        "runs": [
            {name: one[name] for name in _FIGURES if name in one} for one in records if "arm" in one
        ],
    }


def step_results(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results to store, of the records of ``benchmarks.devices.gpu``."""
    head, *units = records
    checks = {
        part: {
            "units": sum("unit" in one for one in units if one["part"] == part),
            "failed": [one["unit"] for one in units if one["part"] == part and "failed" in one],
        }
        for part in ("bits", "waits", "launches", "drafts")
    }
    checks["launches"]["differ"] = [one["unit"] for one in units if one.get("differs")]
    return {
        "device": head["device"],
        "torch": head["torch"],
        "checks": checks,
        "times": [
            {
                "work": one["unit"].rpartition(", ")[0],
                "rows": one["rows"],
                **{name: one["float32"][name] for name in _TIMES},
            }
            for one in units
            if one["part"] == "times" and "float32" in one
        ],
    }


def _shapes(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Yield the runs with short prompts and those with long ones, each with a heading."""
    for about, is_long in (
        ("Prompts of {prompt:,} tokens, {tokens:,} tokens generated:", False),
        (
            "Long prompts in the radix cache, {tokens:,} tokens generated, arrival included:",
            True,
        ),
    ):
        chosen = [one for one in runs if (one["prompt_tokens"] >= _LONG) == is_long]
        if chosen:
            first = chosen[0]
            yield about.format(prompt=first["prompt_tokens"], tokens=first["tokens"]), chosen


def _engine_block(results: Mapping[str, Any]) -> str:
    lines = [
        f"Measured on: {results['device']}, torch {results['torch']}, SGLang {results['sglang']}.",
        "Milliseconds a token, the time of a whole call divided by its tokens: the faster of two",
        "calls, and the slower one in brackets.",
    ]
    if any("arrival_ms" in one for one in results["runs"]):
        lines.append("*Arrival* is the milliseconds of a call of one token, with cached prompts.")
    for about, runs in _shapes(results["runs"]):
        shapes = [*dict.fromkeys((one["requests"], one["prompt_tokens"]) for one in runs)]
        is_long = runs[0]["prompt_tokens"] >= _LONG
        heads = [
            f"{requests} of {prompt:,} tokens" if is_long else _counted(requests, "request")
            for requests, prompt in shapes
        ]
        rows = [
            [_ARMS[engine], arm, *(_cell(runs, engine, arm, shape) for shape in shapes)]
            for engine, arm in dict.fromkeys((one["engine"], one["arm"]) for one in runs)
        ]
        lines += ["", about, "", *table(["engine", "requests carry", *heads], rows)]
    return "\n".join(lines)


def _cell(runs: Sequence[Mapping[str, Any]], engine: str, arm: str, shape: tuple[int, int]) -> str:
    for one in runs:
        if (one["engine"], one["arm"]) == (engine, arm) and shape == (
            one["requests"],
            one["prompt_tokens"],
        ):
            step = f"{one['step_ms']:.2f} ({one['slower_ms']:.2f})"
            return f"{step}, arrival {one['arrival_ms']:.0f}" if "arrival_ms" in one else step
    return "-"


def _steps_block(results: Mapping[str, Any]) -> str:
    times, checks = results["times"], results["checks"]
    rows = sorted({one["rows"] for one in times})
    found = {(one["work"], one["rows"]): one["host_us"] for one in times}
    most = {one["work"]: one for one in times if one["rows"] == rows[-1]}
    fill = f"{next(iter(most.values()))['fill_us']:.0f} µs"
    lines = [
        f"Measured on: {results['device']}, torch {results['torch']}, float32 logits.",
        "Microseconds of a step until the host is free, and in the last column until the device",
        f"is done, at {rows[-1]} rows; one `fill_` of their logits takes {fill}.",
        "",
        *table(
            ["work", *(_counted(count, "row") for count in rows), "device"],
            [
                [
                    work,
                    *(
                        f"{found[work, count]:,.0f}" if (work, count) in found else "-"
                        for count in rows
                    ),
                    f"{most[work]['done_us']:,.0f}" if work in most else "-",
                ]
                for work in dict.fromkeys(one["work"] for one in times)
            ],
        ),
        "",
    ]
    for part, about in (
        ("bits", "logits equal those of the reference or of a CPU, bit for bit"),
        ("waits", "work does not wait for the device"),
    ):
        failed = checks[part]["failed"]
        kept = checks[part]["units"] - len(failed)
        lines.append(f"- {kept} of {checks[part]['units']} checks that {about}{_named(failed)}.")
    differ = checks["launches"]["differ"]
    lines.append(
        f"- {len(differ)} of {checks['launches']['units']} kinds of work launch or copy otherwise "
        "than the table above says."
    )
    return "\n".join(lines)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _named(failed: Sequence[str]) -> str:
    return f"; failed: {'; '.join(failed)}" if failed else ""


ENGINE = Part("gpu-engine", "performance.md", _engine_block)
STEPS = Part("gpu", "performance-gpu.md", _steps_block)


def main(files: Sequence[str]) -> None:
    """Store the results of files of records, and renew their pages."""
    for file in files:
        records = [orjson.loads(line) for line in Path(file).read_bytes().splitlines()]
        if any("part" in one for one in records):
            STEPS.store(step_results(records))
        else:
            ENGINE.store(engine_results(records))


if __name__ == "__main__":
    main(sys.argv[1:])
