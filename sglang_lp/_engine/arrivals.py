"""What is done for a request when it arrives, so that its first step does not wait for it.

Arrivals themselves keep the batch waiting. So what is done between two steps is bounded, and the
first step of a row does the rest for it.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from sglang_lp._engine import batch

if TYPE_CHECKING:
    from sglang_lp._engine.rows import Row

__all__ = ["Arrivals"]

#: Seconds between two steps in which rows are started (`make bench-bounds`).
_MOST_SECONDS = 0.018

#: So many rows that arrive between two steps are asked for their first edits before the step.
#: The rest of a request's copies find what these put together.
_MOST_EARLY = 16


class Arrivals:
    """The rows that arrive between two steps."""

    __slots__ = ("_at", "_early", "_longest", "_spent")

    def __init__(self) -> None:
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        self._early = 0
        self._spent = self._longest = 0.0

    def start(self, row: Row, vocab_size: int | None) -> None:
        """Start a row that has just arrived, unless the others have taken too long.

        Args:
            row: Of a request that is new to this process.
            vocab_size: Number of logits in a row of the model, if known and if the request has no
                generated tokens: then it is asked for its first edits.
        """
        if self._at != batch.clock():
            self._at = batch.clock()
            self._begin()
        if self._spent + self._longest > _MOST_SECONDS:
            return
        began = perf_counter()
        row.arrive()
        if vocab_size is not None and row.processor.early and self._early < _MOST_EARLY:
            self._early += 1
            row.ask_early(vocab_size)
        took = perf_counter() - began
        self._spent += took
        self._longest = max(self._longest, took)
