"""What is done for a request before its first step, so that the step does not wait for it.

Arrivals themselves keep the batch waiting. So what is done between two steps is bounded, and the
requests whose prompts are still to be read stay in the queue. The bound is a number of tokens and
no time: all ranks of a server have to agree on who waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from sglang_lp._engine.history.row import same_tokens
from sglang_lp.edits import NEVER
from sglang_lp.faults import from_signal

if TYPE_CHECKING:
    from sglang_lp._engine.history.row import Row
    from sglang_lp.edits import End

__all__ = ["Arrivals", "ask_again"]

#: Tokens of the prompts that are read between two steps, and as how much of its prompt a copy
#: counts, which is compared with the first one and not read (`make bench PART=bounds`).
_MOST_TOKENS = 147_456
_OF_COPY = 32
#: As how many tokens of a prompt a resumed one counts: a processor takes in each by itself, in up
#: to 12 µs, and a chain of eight links eight times.
_OF_RESUMED = 128

#: So many rows that arrive between two steps are asked for their first edits before the step.
#: The rest of a request's copies find what these put together.
_MOST_EARLY = 16


class Arrivals:
    """The rows that have arrived and had no step yet."""

    __slots__ = ("_early", "_latest", "_tokens", "_unread")

    def __init__(self) -> None:
        #: Weak, and so no more than a hint: when a row goes differs from rank to rank.
        self._unread: WeakSet[Row] = WeakSet()
        self._begin()

    def _begin(self) -> None:
        self._early = self._tokens = 0
        #: Parameters and prompt of the latest row that was read for.
        self._latest: tuple[object, Sequence[int]] = None, ()

    @property
    def wait(self) -> bool:
        """Whether a row may wait for :meth:`read`."""
        return bool(self._unread)

    def start(self, row: Row, vocab_size: int | None) -> None:
        """Start a row that has just arrived, or leave it to :meth:`read` if it reads its prompt.

        Args:
            row: Of a request that is new to this process.
            vocab_size: Number of logits in a row of the model, if known and if the request has no
                generated tokens: then it is asked for its first edits.
        """
        if row.processor.reads_prompt or row.resumed:
            row.unread = True
            self._unread.add(row)
        else:
            self._start(row, vocab_size)

    def read(
        self, rows: Iterable[Row | None], vocab_size: int | None, *, alone: bool = False
    ) -> set[int]:
        """Start rows that read their prompts, as many as may be between two steps.

        Args:
            rows: Those of the requests that could begin now, in the same order on all ranks;
                ``None`` for one without.
            vocab_size: As for :meth:`start`.
            alone: Whether there is no batch that waits meanwhile.

        Returns:
            The indices of the rows that have to wait. The first prompt is always read; of an
            answer that it resumes a part.
        """
        waiting: set[int] = set()
        for index, row in enumerate(rows):
            if row is None or not row.unread:
                continue
            if not (row.started or self._has_room(row)):
                waiting.add(index)
                continue
            try:
                if self._start(row, None if row.source.output_ids else vocab_size, alone=alone):
                    waiting.add(index)
                    continue
            except BaseException as error:
                if from_signal(error):
                    raise
                row.restart()  # its first step starts it, and ends it if that fails again
            row.unread = False
            self._unread.discard(row)
        self._begin()
        return waiting

    def _start(self, row: Row, vocab_size: int | None, *, alone: bool = False) -> int:
        """Start a row, and let it resume its answer; return how many tokens of that are left."""
        if not row.started:
            row.arrive()
        if row.resumed:
            before, room = len(row.tokens), max(0, _MOST_TOKENS - self._tokens) // _OF_RESUMED
            left = row.resume(NEVER if alone else room)
            self._tokens += (len(row.tokens) - before) * _OF_RESUMED
            if left:
                return left
        if vocab_size is not None and row.processor.early and self._early < _MOST_EARLY:
            self._early += 1
            row.ask_early(vocab_size)
        return 0

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


def ask_again(row: Row, vocab_size: int) -> End | None:
    """Ask for the edits of a first token that was sampled elsewhere, and take them down.

    Args:
        row: Of a request that has just arrived: its processor was told of no token yet. It starts
            again, because asking may have changed its state.
        vocab_size: Number of logits in a row of the model.

    Returns:
        How the request ends with that token, or ``None`` if it goes on. Unknown, and so ``None``,
        where the processor asks for the logits, which are elsewhere.

    Raises:
        Exception: Whatever else the processor raises.
    """
    if row.dense:
        row.acts.note(row.resumed, forced=False)
    if not row.processor.edits:
        return None
    try:
        if not row.started:
            row.arrive()
        row.resume()
        recording = row.ask(vocab_size)
        recording.act()
    except AttributeError:
        return None  # the logits, which cannot be read here
    finally:
        row.restart()
    if not recording.is_empty:
        row.acts.note(row.resumed, forced=recording.forced is not None)
    return recording.end
