"""Tokens that a processor announces, checked; the server drafts them."""

from __future__ import annotations

from itertools import islice
from operator import index
from typing import TYPE_CHECKING

from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    from sglang_lp._engine.history.row import Row


def foreseen(row: Row, count: int, vocab_size: int) -> list[int]:
    """Return the tokens that a row's processor will force, from the next position on.

    Args:
        row: The row.
        count: Most tokens to return.
        vocab_size: Number of logits in a row of the model.

    Raises:
        ProcessorFault: A token is outside the vocabulary.
    """
    forced: list[int] = []
    for turn in row.turns:  # the first that forces one: the others leave its tokens alone
        row.running = turn
        forced = [*map(index, islice(turn.foresee(), count))]
        if forced:
            break
    row.running = None
    if forced and not 0 <= min(forced) <= max(forced) < vocab_size:
        raise ProcessorFault(
            f"foresee(): expected token ids from 0 to {vocab_size - 1}, got {forced}"
        )
    return forced
