"""Replaces the tokens that processors foresee: a part of :mod:`support.cpu.speculation`.

With ``VARIABLE`` set drafts are written over at random, and answers must not change.
"""

from __future__ import annotations

import os
import random
from typing import Any

__all__ = ["VARIABLE", "install"]

VARIABLE = "SGLANG_LP_TEST_GUESSES"
_VOCAB = 1024
_RNG = random.Random(30)  # noqa: S311 - not for keys


def install() -> None:
    """Change this process, if the environment says so."""
    if VARIABLE not in os.environ:
        return
    from sglang_lp.server.scheduler import known_drafts

    vars(known_drafts)["_forced"] = _at_random


def _at_random(batch: Any, count: int) -> dict[int, tuple[int, list[int]]]:
    """Guess for every other request that has edits at each step, from a wrong place on."""
    from sglang_lp._engine.history.attached import rows_of

    guesses = {}
    for index, row in enumerate(rows_of(batch.sampling_info.custom_params)):
        if row is None or row.wake or batch.reqs[index].grammar is not None or _RNG.randrange(2):
            continue
        begin = len(row.prompt_ids) + row.position + _RNG.randint(-2, 2)
        guesses[index] = begin, [_RNG.randrange(2, _VOCAB) for _ in range(_RNG.randint(1, count))]
    return guesses
