"""The cost of a step in this version and in an earlier one.

``python -m benchmarks.cost.turns [REVISION]``.

Two processes take turns, one with this version and one with an earlier one from the repository's
history. Each measures 256 rows at work, with the cases of its own version: in a step without
drafts, and in a verify step with chains of five nodes. Operations on the logits are left out: the
figure is the host's time, as processor time of the thread.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from benchmarks.cost.cases import median
from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from support.settings import ROOT

__all__ = ["BEFORE", "PART", "main", "unpack"]

#: The last commit of 0.3.0.
BEFORE = "432d0c1b"
ROUNDS = 3
_KINDS = "plain", "drafts"

#: Prints for each case the microseconds of a step without drafts and with them.
_SIDE = """
import time
from functools import partial
from unittest.mock import patch
import orjson, torch
from benchmarks.cost.cases import VOCAB, Batch, median, per_step
from benchmarks.drafts.at_work import ROWS, cases
from benchmarks.drafts.verify_step import VerifyStep
from benchmarks.machine import age
from sglang_lp._engine.apply.plan import Plan
from sglang_lp._engine.batch import Batch as Served
from sglang_lp._engine.history.attached import rows_of
from sglang_lp.testing import decided_as_on_a_gpu

torch.set_num_threads(1)
try:
    from sglang_lp._engine.forms.forms import Forms
    from sglang_lp.builtins.known_forms import FORMS
except ImportError:  # before 0.4.0
    made = Served
else:
    made = lambda: Served(forms=Forms(FORMS))

def timed(step, commit):
    for _ in range(3):  # the first reads the prompts
        step()
        commit()
    age()
    return median([per_step(step, 20, commit, time.thread_time) for _ in range(3)]) * 1e6

found = {}
with (
    decided_as_on_a_gpu(),
    patch.multiple(Plan, apply=lambda *_given: None, decide=lambda *_given: None),
):
    logits = torch.zeros(1, VOCAB).expand(ROWS, VOCAB)
    for name, case in cases(ROWS):
        batch, served = Batch(case), made()
        given = batch.info.custom_params
        plain = timed(lambda: served.step(logits, rows_of(given), given), batch.decode)
        verify = VerifyStep(case)
        found[name] = plain, timed(verify.run, verify.commit)
print(orjson.dumps(found).decode())
"""


def _run(tree: Path) -> dict[str, tuple[float, float]]:
    """Measure a version in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _SIDE],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return orjson.loads(done.stdout)  # type: ignore[no-any-return]


def unpack(revision: str, directory: Path) -> None:
    """Write the files of a commit into a folder, which is made."""
    packed = subprocess.run(
        ["git", "archive", "--format=tar", revision],  # noqa: S607 - found as everywhere else
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(directory, filter="data")


def measure(revision: str) -> list[dict[str, Any]]:
    """Return for each case the medians of both versions, in microseconds."""
    with TemporaryDirectory() as directory:
        before = Path(directory, "before")
        unpack(revision, before)
        rounds = [(_run(before), _run(ROOT)) for _ in range(ROUNDS)]
    names = [name for name in rounds[0][1] if name in rounds[0][0]]
    return [
        {
            "name": name,
            **{
                f"{side}_{kind}": round(median([one[place][name][at] for one in rounds]), 1)
                for place, side in enumerate(("before", "now"))
                for at, kind in enumerate(("plain", "drafts"))
            },
        }
        for name in names
    ]


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    on = results["machine"]
    lines = [
        f"Measured on: {on['cpu']}; Python {on['python']}, torch {on['torch']}, one thread.",
        f"The median of {ROUNDS} turns; load average {on['load']}.",
        "",
    ]
    rows = (
        (
            one["name"],
            *(f"{one[f'before_{kind}']:,.0f}, {one[f'now_{kind}']:,.0f} µs" for kind in _KINDS),
        )
        for one in results["cases"]
    )
    head = "256 rows at work, 0.3.0 and this version", "a step", "a verify step of 5 nodes"
    return "\n".join([*lines, *table(head, rows)])


PART = Part("turns", "performance.md", page_block)


def main(revision: str = BEFORE) -> int:
    """Measure, store the results, renew the page and print its table."""
    PART.store({"machine": machine(), "revision": revision, "cases": measure(revision)})
    print(page_block(PART.stored()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
