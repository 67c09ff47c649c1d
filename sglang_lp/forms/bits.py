"""Sets of tokens as bits, for compiled functions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from sglang_lp.forms.compiled import compiled

__all__ = ["bits_of", "has_bit"]


def bits_of(token_ids: Collection[int]) -> Any:
    """Return a bit for each token up to the largest of a set, 32 in each int32."""
    bits = np.zeros(32 * (max(token_ids) // 32 + 1) if token_ids else 0, np.uint8)
    bits[[*token_ids]] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


@compiled()
def has_bit(numbers: Any, at: Any, size: Any, token_id: Any) -> bool:
    """Tell whether a token is in the set whose bits are ``size`` numbers from ``at`` on.

    A negative token, such as the token of a row whose tokens are not read, is in no set.
    """
    place = token_id >> 5
    if place < 0 or place >= size:
        return False
    return bool((numbers[at + place] >> (token_id & 31)) & 1)
