"""What a processor says that it will force, checked."""

from __future__ import annotations

from itertools import islice
from operator import index
from typing import TYPE_CHECKING

from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    from sglang_lp._engine.history.row import Row

__all__ = ["foreseen"]


def foreseen(row: Row, count: int, vocab_size: int) -> list[int]:
    """Return the tokens that a row's processor will force from where its request is on.

    Args:
        row: The row.
        count: At most this many.
        vocab_size: Number of logits in a row of the model.

    Raises:
        ProcessorFault: One of them is outside the vocabulary.
    """
    forced = [*map(index, islice(row.processor.foresee(row.request), count))]
    if forced and not 0 <= min(forced) <= max(forced) < vocab_size:
        raise ProcessorFault(
            f"foresee(): expected token ids from 0 to {vocab_size - 1}, got {forced}"
        )
    return forced
