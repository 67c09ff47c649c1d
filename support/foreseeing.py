"""What processors foresee, replaced: a part of :mod:`support.cpu_speculation`.

With ``VARIABLE`` set drafts are written over at random, and answers must not change.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

__all__ = ["VARIABLE", "install"]

VARIABLE = "SGLANG_LP_TEST_GUESSES"
_VOCAB = 1024
_RNG = random.Random(30)  # noqa: S311 - not for keys


def install() -> None:
    """Change this process, if the environment says so."""
    if VARIABLE not in os.environ:
        return
    from sglang_lp.server.scheduler import foresight

    vars(foresight)["_forced"] = _at_random


def _at_random(batch: Any, count: int) -> Iterator[Any]:
    """Guess for every other request that has edits at each step, from a wrong place on."""
    from sglang_lp._engine.rows import rows_of

    for row, req in zip(rows_of(batch.sampling_info.custom_params), batch.reqs, strict=True):
        forced: list[int] = []
        if row is not None and row.wake == 0 and req.grammar is None and _RNG.randrange(2):
            forced = [_RNG.randrange(2, _VOCAB) for _ in range(_RNG.randint(1, count))]
        begin = 0 if row is None else row.request.position
        yield row, max(0, begin + _RNG.randint(-2, 2)), forced
