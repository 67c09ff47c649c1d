"""Tables and plots of the stored results of :mod:`benchmarks.cost`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from typing import Any, NamedTuple

from benchmarks.pages import Part
from benchmarks.svg import save
from benchmarks.tables import duration, table, verdict
from support.settings import ROOT

__all__ = ["PART", "Figure", "figures", "plot", "show"]

PLOTS = ROOT / "docs" / "plots"


class Figure(NamedTuple):
    """A promise and how it was kept.

    Attributes:
        title: What was measured.
        stock_us: SGLang's time in microseconds, if it has one.
        ours_us: The toolkit's.
        limit_us: The longest time that keeps the promise.
        limit: The source of that limit.
    """

    title: str
    stock_us: float | None
    ours_us: float
    limit_us: float
    limit: str

    @property
    def met(self) -> bool:
        """Whether the promise was kept."""
        return self.ours_us <= self.limit_us


def figures(results: Mapping[str, Any]) -> Iterator[Figure]:
    """Yield what was promised, in the order of the promises."""
    case = {case["key"]: case for case in results["cases"]}

    def of_stock(title: str, key: str, part: int) -> Figure:
        stock, ours = case[key]["stock_us"], case[key]["ours_us"]
        limit = "stock" if part == 1 else f"stock / {part:,}"
        return Figure(title, stock, ours, stock / part, limit)

    thinking = "thinking budget that cannot fire, 256 rows, history"
    yield of_stock(f"{thinking} 16k", "thinking-idle-256x16384", 1000)
    short, long = case["thinking-idle-256x1024"], case["thinking-idle-256x131072"]
    yield Figure(
        f"{thinking} 128k",
        long["stock_us"],
        long["ours_us"],
        1.2 * short["ours_us"],
        "1.2 x history 1k",
    )
    spent = case["thinking-forced-256"]
    yield Figure(
        "thinking budget spent, all 256 rows forced",
        spent["stock_us"],
        spent["ours_us"],
        1.1 * spent["fill_us"],
        "1.1 x `fill_`",
    )
    for kind in ("prose", "table"):
        yield of_stock(f"n-gram 30/90, 256 rows, {kind}", f"ngram-30-90-{kind}-256x1024", 10)
    for kind in ("prose", "table"):
        title = f"n-gram 20, window 16k and more, 32 rows, {kind}"
        yield of_stock(title, f"ngram-20-32768-{kind}-32x16384", 500)
    same, different = case["disallowed-same-256"], case["disallowed-different-256"]
    yield of_stock("100 disallowed tokens, 256 rows, the same", "disallowed-same-256", 1)
    yield Figure(
        "100 disallowed tokens, 256 rows, different",
        None,
        different["ours_us"],
        2 * same["ours_us"],
        "2 x the same",
    )
    engines = {(one["engine"], one["history"]): one for one in results["engine"]}
    for (engine, history), own in engines.items():
        if engine != "stock":
            by = ", by default" if engine == "default" else ""
            yield Figure(
                f"in a whole engine, 16 rows, history {_count(history)}, each step{by}",
                engines["stock", history]["own_us"],
                own["own_us"],
                0.02 * engines["ours", history]["without_us"],
                "2% of a step",
            )
    client = results["client"]
    yield Figure("`import sglang_lp.client`", client["import"]["stock_us"],
                 client["import"]["ours_us"], 60_000, "60 ms")  # fmt: skip
    yield Figure("`attach()`", client["attach"]["stock_us"],
                 client["attach"]["ours_us"], 5, "5 µs")  # fmt: skip


def _others(results: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield each processor SGLang does not have, and its times by length of history."""
    times: dict[str, list[str]] = {}
    for case in results["cases"]:
        if match := re.fullmatch(r"(\w+Processor)-\d+x\d+", case["key"]):
            times.setdefault(f"`{match[1]}`", []).append(duration(case["ours_us"]))
    for title, found in sorted(times.items()):
        yield [title, *found]


_ENGINES = {
    "ours": "sglang-lp",
    "default": "sglang-lp, the budget by default",
    "stock": "SGLang alone",
}


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    rows = [
        [
            figure.title,
            duration(figure.stock_us),
            duration(figure.ours_us),
            _ratio(figure),
            f"{duration(figure.limit_us)} ({figure.limit})",
            verdict(met=figure.met),
        ]
        for figure in figures(results)
    ]
    engines = [
        [
            _ENGINES[engine["engine"]],
            _count(engine["history"]),
            duration(engine["without_us"]),
            duration(engine["with_us"]),
            duration(engine["own_us"]),
            f"{engine['own_us'] / (engine['without_us'] or engine['with_us']):.2%}",
        ]
        for engine in results["engine"]
    ]
    (dearest,) = (case for case in results["cases"] if case["key"] == "dry-one-token")
    return "\n".join(
        [
            "Measured on: {cpu}, {cores} cores, {memory_gib} GiB; Python {python}, torch {torch} "
            "({torch_threads} threads), SGLang {sglang}; load average at the start {load}; "
            "medians of {rounds} runs ({engine_rounds} in the whole engine, {imports} of importing "
            "SGLang).".format(
                **results["machine"],
                rounds=results["rounds"],
                engine_rounds=results["engine_rounds"],
                imports=results["client"]["import"]["stock_rounds"],
            ),
            "",
            *table(["", "SGLang", "sglang-lp", "ratio", "at most", "met"], rows),
            "",
            "The whole engine, 16 rows, idle thinking budget, time of a step:",
            "",
            *table(["", "history", "without", "with", "spent in its own code", "share"], engines),
            "",
            "Processors SGLang does not have, 32 rows, each kept at work:",
            "",
            *table(["", "history 1k", "history 64k"], _others(results)),
            "",
            "DRY on its dearest text, one token over and over, in a window of 2,048, one row: "
            + duration(dearest["ours_us"]),
        ]
    )


PART = Part("cost", "performance.md", page_block)


def show(results: Mapping[str, Any]) -> int:
    """Print the table; return 1 if a figure is missed, else 0."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "SGLang", "sglang-lp", "ratio", "at most", "", title="Cost of a step")
    for figure in figures(results):
        limit = f"{duration(figure.limit_us)} ({figure.limit})"
        mark = "[green]met[/]" if figure.met else "[red]MISSED[/]"
        table.add_row(
            figure.title,
            duration(figure.stock_us),
            duration(figure.ours_us),
            _ratio(figure),
            limit,
            mark,
        )
    Console(width=150).print(table)
    return 0 if all(figure.met for figure in figures(results)) else 1


def plot(results: Mapping[str, Any]) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    # Text stays text, and the same results give the same file.
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "sglang-lp", "font.size": 9}
    lines = {
        "history": [
            ("thinking budget, idle, 256 rows", "thinking-idle-256x*"),
            ("n-gram 20, whole history, 32 rows", "ngram-20-32768-prose-32x*"),
        ],
        "rows": [
            ("thinking budget, idle, history 16k", "thinking-idle-*x16384"),
            ("thinking budget, all rows forced", "thinking-forced-*"),
            ("n-gram 30/90", "ngram-30-90-prose-*"),
        ],
    }
    labels = {"history": "tokens of history", "rows": "rows in the batch"}
    PLOTS.mkdir(exist_ok=True)
    for by, families in lines.items():
        canvas = Canvas(figsize=(6.4, 4.2), layout="constrained")
        axes = canvas.subplots()
        ticks = set()
        for color, (title, keys) in zip(("C0", "C1", "C2"), families, strict=False):
            points = sorted(
                (case[by], case["stock_us"] / 1000, case["ours_us"] / 1000)
                for case in results["cases"]
                if fnmatch(case["key"], keys)
            )
            across, stock, ours = zip(*points, strict=True)
            ticks |= set(across)
            axes.plot(across, stock, color=color, ls="--", marker="o")
            axes.plot(across, ours, color=color, marker="o", label=title)
        # Names at the ends of the lines would overlap where lines meet.
        axes.plot([], [], color="0.4", label="sglang-lp")
        axes.plot([], [], color="0.4", ls="--", label="stock SGLang")
        axes.set(xscale="log", yscale="log", xlabel=labels[by], ylabel="ms per step")
        axes.set_xticks(sorted(ticks), [_count(tick) for tick in sorted(ticks)])
        axes.minorticks_off()
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=7, handlelength=4)
        save(canvas, PLOTS / f"cost-by-{by}.svg")


def _ratio(figure: Figure) -> str:
    if figure.stock_us is None:
        return "-"
    ratio = figure.stock_us / figure.ours_us
    return f"1/{ratio:,.0f}" if ratio >= 10 else f"{1 / ratio:.2f}"


def _count(number: int) -> str:
    return f"{number // 1024}k" if number >= 1024 else str(number)
