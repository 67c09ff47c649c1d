"""The items that are measured, and the rules of requests for them.

Items are three tokens of 8,192 each, drawn as clustering draws them: a few codes are much more
frequent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CODES, LEVELS = 8192, 3
#: Rules of a request, each with another list.
RULES = ("none", "a set", "1,000 left out")


def codes_of(items: int) -> Any:
    """Return the tokens of some items."""
    random = np.random.default_rng(0)
    drawn = (random.random((items, LEVELS)) ** 2 * CODES).astype(np.int32)
    return drawn + np.arange(LEVELS, dtype=np.int32) * CODES


def sets_of(items: int) -> dict[str, Any]:
    """Return a set of half of the items."""
    return {"half": np.random.default_rng(1).random(items) < 0.5}


def params_of(rule: str, row: int, items: int = 1_000_000) -> dict[str, Any]:
    """Return the parameters of a request.

    Args:
        rule: One of ``RULES``.
        row: Number of the request, which decides what it leaves out.
        items: Number of items.
    """
    given: dict[str, Any] = {"catalogue": "items"}
    if rule == "a set":
        given["subset"] = ["half"]
    elif rule == "1,000 left out":
        given["exclude"] = np.random.default_rng(row).integers(0, items, 1000).tolist()
    return given
