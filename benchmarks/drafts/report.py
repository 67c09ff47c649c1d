"""Tables of the stored results of :mod:`benchmarks.drafts`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.drafts.engine import COUNTED
from benchmarks.pages import Part
from benchmarks.tables import duration, table, verdict

__all__ = ["PART", "Promise", "promises", "show"]

#: Microseconds of a node, by rule.
NODE_US = {"spent budget": 15.0, "forced sequence": 15.0, "n-gram rule": 40.0}
#: Microseconds of a step in which all rows sleep.
IDLE_US = 50.0
#: A long history may cost this much of a short one.
GROWTH = 1.2
#: Verify steps of forced tokens with foresight, as a share of those without.
FORESEEN = 1 / 3
#: The toolkit's own code, as a share of a step of the engine.
SHARE = 0.01
_ENGINE = (
    *("engine", "processor", "steps", "waits", "delayed"),
    *("a step", "own code in it", "accept length"),
)
_FORESIGHT = "engine", "answer", "steps", "steps without foresight", "share"


class Promise(NamedTuple):
    """A promise, the measured value, and whether the promise was kept."""

    title: str
    came: str
    limit: str
    met: bool


def promises(results: Mapping[str, Any]) -> Iterator[Promise]:
    """Yield what was promised, in the order of the page."""
    rules: dict[str, list[Mapping[str, Any]]] = {}
    for one in results["rules"]:
        rules.setdefault(one["rule"], []).append(one)
    for rule, found in rules.items():
        unit, limit = ("node", NODE_US[rule]) if rule in NODE_US else ("step", IDLE_US)
        short, *_, long = (one[f"{unit}_us"] for one in found)
        title = f"verify step of {results['rows']} rows and {results['nodes']} nodes, {rule}"
        came = f"{max(short, long):.3g} µs a {unit}"
        yield Promise(title, came, f"{limit:g} µs", max(short, long) <= limit)
        came = f"{long / short:.2f} of the time with 1k"
        yield Promise("the same, history 16k", came, f"{GROWTH:g}", long <= GROWTH * short)
    engine = {(one["engine"], one["processor"]): one for one in results["engines"]}
    counted = engine["ordinary", "idle budget"]
    held = counted["waits"] + counted["delayed"]
    yield Promise(
        "whole engine, idle budget: steps that wait for a pending result, or whose sampling is "
        "delayed",
        f"{held} of {counted['steps']:,}",
        f"0 of {COUNTED:,}",
        held == 0 and counted["steps"] >= COUNTED,
    )
    large = engine["large vocabulary", "idle budget"]
    share = large["own_us"] / large["step_us"]
    yield Promise(
        "whole engine, idle budget, own code in a step",
        f"{large['own_us']:.3g} µs of {large['step_us'] / 1000:.3g} ms, {share:.2%}",
        f"{SHARE:.0%}",
        share <= SHARE,
    )
    alone, idle = (engine["EAGLE", name]["accept_length"] for name in ("none", "idle budget"))
    yield Promise(
        "EAGLE, accept length with an idle budget", f"{idle:.3f}", f"{alone:.3f} without",
        idle == alone,
    )  # fmt: skip
    for one in results["foresight"]:
        if one["free"]:
            continue  # those tokens take the steps that the draft model gives them
        share = one["steps_with"] / one["steps_without"]
        yield Promise(
            f"{one['engine']}, {one['case']}, verify steps with foresight",
            f"{share:.2f} of those without",
            f"{FORESEEN:.2f}",
            share <= FORESEEN,
        )


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    machine = results["machine"]
    measured_on = (
        f"Measured on: {machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, "
        f"torch {machine['torch']}, SGLang {machine['sglang']}; load average at the start "
        f"{machine['load']}; medians of {results['rounds']} runs."
    )
    kept = ((one.title, one.came, one.limit, verdict(met=one.met)) for one in promises(results))
    engines = (
        (
            *(one["engine"], one["processor"], f"{one['steps']:,}", f"{one['waits']:,}"),
            *(str(one["delayed"]), f"{one['step_us'] / 1000:.3g} ms", duration(one["own_us"])),
            str(one["accept_length"] or "-"),
        )
        for one in results["engines"]
    )
    foresight = (
        (
            *(one["engine"], one["case"]),
            *(f"{one[steps]:.1f}" for steps in ("steps_with", "steps_without")),
            f"{one['steps_with'] / one['steps_without']:.2f}",
        )
        for one in results["foresight"]
    )
    return "\n".join(
        [
            measured_on,
            "",
            *table(("", "sglang-lp", "at most", "met"), kept),
            "",
            "The engines, 16 rows each. A step that is awake waits once for the result before it:",
            "",
            *table(_ENGINE, engines),
            "",
            "Verify steps of an answer whose forced tokens are foreseen, and are not:",
            "",
            *table(_FORESIGHT, foresight),
        ]
    )


PART = Part("drafts", "performance-drafts.md", page_block)


def show(results: Mapping[str, Any]) -> int:
    """Print the promises and the measured values; return 1 if a promise is missed, else 0."""
    kept = [*promises(results)]
    for one in kept:
        print(f"{one.title}: {one.came}, at most {one.limit}{'' if one.met else ': MISSED'}")
    return 0 if all(one.met for one in kept) else 1
