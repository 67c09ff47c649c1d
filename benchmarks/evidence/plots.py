"""The findings of ``docs/evidence.md``, drawn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.svg import save
from support.settings import ROOT

__all__ = ["FOLDER", "plot"]

FOLDER = ROOT / "docs/plots"


def plot(results: Mapping[str, Any], folder: Path = FOLDER) -> None:
    """Draw every section that has a plot and was reached."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text stays text, and the same results give the same file.
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "sglang-lp", "font.size": 9}
    for section, (draw, height) in _PLOTS.items():
        if not (found := results.get(section)):
            continue
        figure = Figure(figsize=(6.4, height), layout="constrained")
        axes = figure.subplots()
        draw(axes, found)
        axes.set_xlim(left=0)  # at last, because it fixes the right end as well
        save(figure, folder / f"evidence-{section}.svg")


def _arms(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.grid(visible=True, axis="x", alpha=0.3)


def _shares(axes: Any, rows: Sequence[Sequence[float]], label: str, color: str, up: float) -> None:
    """Draw a fraction of each arm as a point, on the line of its interval."""
    for at, (hits, of, low, high) in enumerate(rows):
        axes.plot([100 * low, 100 * high], [at + up] * 2, color=color)
        axes.plot(
            [100 * hits / max(of, 1)], [at + up], "o", color=color, label=None if at else label
        )
    axes.legend(fontsize=7)


def _loops(axes: Any, found: Mapping[str, Any]) -> None:
    _arms(axes, [*found])
    _shares(axes, [row["loops"] for row in found.values()], "a loop", "C0", -0.12)
    numbered = [row["numbered"] for row in found.values()]
    _shares(axes, numbered, "or but for numbers", "C1", 0.12)
    axes.set(xlabel="% of answers that end in a loop, with the 95 % interval")


def _bans(axes: Any, found: Mapping[str, Any]) -> None:
    _arms(axes, [*found])
    _shares(axes, [row["any_case"] for row in found.values()], "in any letter case", "C0", 0)
    axes.set(xlabel="% of answers with the banned word, with the 95 % interval")


def _budgets(axes: Any, found: Mapping[str, Any]) -> None:
    _arms(axes, [*found])
    for at, row in enumerate(found.values()):
        budget = [*found][at].partition(",")[0]
        axes.plot([row["median"], row["longest"]], [at, at], "o-", color="C0", markersize=3)
        if budget.isdecimal():
            axes.plot([int(budget)] * 2, [at - 0.3, at + 0.3], color="C3")
    axes.set(xlabel="tokens in the block, median to most; the budget in red")


def _speed(axes: Any, found: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> None:
    bars: dict[str, dict[str, float]] = {}
    for server, arms in found.items():
        free = arms["none"]
        for arm, of in arms.items():
            if arm != "none":
                bars[f"{server}: {arm}"] = {
                    size: 100 * statistics.median(rates) / statistics.median(free[size])
                    for size, rates in of.items()
                }
    _arms(axes, [*bars])
    for turn, size in enumerate(sizes := [*next(iter(bars.values()))]):
        width = 0.8 / len(sizes)
        places = [at + (turn - (len(sizes) - 1) / 2) * width for at in range(len(bars))]
        axes.barh(places, [of[size] for of in bars.values()], width, label=f"{size} at once")
    axes.axvline(100, color="0.4", lw=0.8)
    axes.legend(fontsize=7, ncols=len(sizes), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.set(xlabel="% of the speed without a processor")


#: Section -> what draws it, and its height in inches.
_PLOTS: Mapping[str, tuple[Callable[[Any, Mapping[str, Any]], None], float]] = {
    "loops": (_loops, 3.6),
    "bans": (_bans, 2.6),
    "budgets": (_budgets, 3.6),
    "speed": (_speed, 4.2),
}
