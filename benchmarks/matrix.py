"""The matrix of ``sglang-lp doctor`` on the demo's model: ``make bench PART=matrix``.

Each server has another parser or another drafter, and one is SGLang without this toolkit. The
results go to ``benchmarks/results/matrix.json`` and into the tables of ``docs/matrix.md``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from demo.model import DEFAULT_DIRECTORY, ensure_model
from demo.server import ARGUMENTS, DRAFTS
from sglang_lp.cli import matrix
from support.cpu import speculation
from support.plugins import PROBES
from support.servers.server import launch

__all__ = ["PART"]

_ALONE, _WITH = speculation.NAME, f"sglang_lp,{speculation.NAME}"
_QWEN = {"reasoning_parser": "qwen3", "tool_call_parser": "qwen25"}
#: By their titles: arguments, and SGLang's plugins.
SERVERS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "SGLang alone": (_QWEN, _ALONE),
    "`qwen3`": (_QWEN, _WITH),
    "`qwen3`, drafts from n-grams": ({**_QWEN, **DRAFTS}, _WITH),
    "`deepseek-r1`": ({**_QWEN, "reasoning_parser": "deepseek-r1"}, _WITH),
    "`gpt-oss`": ({"reasoning_parser": "gpt-oss", "tool_call_parser": "gpt-oss"}, _WITH),
}


def measure() -> dict[str, Any]:
    """Return the table of each server, and the errors of all."""
    model = ensure_model(DEFAULT_DIRECTORY)
    results: dict[str, Any] = {"machine": machine(), "tokens": matrix.TOKENS, "servers": []}
    for title, (arguments, plugins) in SERVERS.items():
        with (
            tempfile.TemporaryDirectory() as scratch,
            launch(
                model,
                Path(scratch),
                {**ARGUMENTS, "grammar_backend": "xgrammar", **arguments},
                paths=[PROBES],
                variables={**speculation.VARIABLES, "SGLANG_PLUGINS": plugins},
            ) as server,
        ):
            served = matrix.look_at(server.url)
            found = matrix.ask(served)
            head, *rows = matrix.table(found)
            results["servers"].append(
                {
                    "title": title,
                    "served": matrix.describe(served),
                    "head": head,
                    "rows": rows,
                    "remarks": matrix.remarks(found),
                    "errors": matrix.errors(found),
                    "passed": matrix.passed(found),
                }
            )
            print(results["servers"][-1], flush=True)
    return results


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    lines: list[str] = []
    for one in results["servers"]:
        lines += ["", f"### {one['title']}", "", f"{one['served']}.", *one["remarks"], ""]
        lines += table(one["head"], _joined(one["rows"]))
    return "\n".join([*lines, ""])


def _joined(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Join rows of an endpoint in which the same came: formats of a tool choice, then choices."""
    for place in (1, 2):
        same: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            same.setdefault((*row[:place], *row[place + 1 :]), []).append(row[place])
        rows = [[*key[:place], ", ".join(names), *key[place:]] for key, names in same.items()]
    return [list(row) for row in rows]


PART = Part("matrix", "matrix.md", page_block)


def main() -> None:
    """Ask the servers, store and renew the page."""
    PART.store(measure())


if __name__ == "__main__":
    main()
