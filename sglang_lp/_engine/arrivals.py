"""What is done for a request when it arrives, so that its first step does not wait for it.

Arrivals themselves keep the batch waiting. So what is done between two steps is bounded, and the
first step of a row does the rest for it. The bound is a number of tokens and no time: a row that
fails to start ends its request, and all ranks of a server have to agree on when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lp._engine import batch
from sglang_lp._engine.rows import same_tokens

if TYPE_CHECKING:
    from sglang_lp._engine.rows import Row

__all__ = ["Arrivals"]

#: Tokens of the prompts that are read between two steps, and as how much of its prompt a copy
#: counts, which is compared with the first one and not read (`make bench-bounds`).
_MOST_TOKENS = 196_608
_OF_COPY = 32

#: So many rows that arrive between two steps are asked for their first edits before the step.
#: The rest of a request's copies find what these put together.
_MOST_EARLY = 16


class Arrivals:
    """The rows that arrive between two steps."""

    __slots__ = ("_at", "_early", "_latest", "_tokens")

    def __init__(self) -> None:
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        self._early = self._tokens = 0
        #: Parameters and prompt of the latest row that was started.
        self._latest: tuple[object, Sequence[int]] = None, ()

    def start(self, row: Row, vocab_size: int | None) -> None:
        """Start a row that has just arrived, unless too much was read for others already.

        Args:
            row: Of a request that is new to this process.
            vocab_size: Number of logits in a row of the model, if known and if the request has no
                generated tokens: then it is asked for its first edits.
        """
        if self._at != batch.clock():
            self._at = batch.clock()
            self._begin()
        if row.processor.reads_prompt and not self._has_room(row):
            return
        row.arrive()
        if vocab_size is not None and row.processor.early and self._early < _MOST_EARLY:
            self._early += 1
            row.ask_early(vocab_size)

    def _has_room(self, row: Row) -> bool:
        """Tell whether a prompt is read now, and count it; the first one always is."""
        params, prompt_ids = row.request.params, row.source.origin_input_ids
        room, tokens = _MOST_TOKENS - self._tokens, len(prompt_ids)
        if tokens // _OF_COPY <= room and params is self._latest[0]:
            # All of it: prompts that differ may end alike, with one question about many texts.
            tokens = tokens // _OF_COPY if same_tokens(prompt_ids, self._latest[1]) else tokens
        if self._tokens and tokens > room:
            return False
        self._tokens += tokens
        self._latest = params, prompt_ids
        return True
