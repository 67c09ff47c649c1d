"""Arrivals: work for a request before its first step, so that the step does not wait for it.

Called by the scheduler's gate and by the waiting queue. This work delays the batch, so it is
bounded between two steps; requests whose prompts are not read yet stay in the queue. The bound is
in tokens and not in time, because all ranks of a server have to agree on which requests wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from sglang_lp._engine.history.row import same_tokens
from sglang_lp.edits import NEVER
from sglang_lp.faults import from_signal

if TYPE_CHECKING:
    from sglang_lp._engine.history.row import Row
    from sglang_lp.edits import End

#: Most tokens of prompts that are read between two steps (`make bench PART=bounds`).
_MOST_TOKENS = 147_456
#: This many copies of the preceding request count as one prompt: a copy is compared and not read.
_COPIES_PER_READ = 32
#: Work of a resumed token, in tokens of a prompt: processors are fed resumed tokens one by one, and
#: each of the eight links of a chain is fed (`make bench PART=bounds`).
_WORK_OF_RESUMED = 128

#: Work of a microsecond of a constructor, in tokens of a prompt. Between two steps, constructors
#: take at most a tenth of a second, or as long as one constructor.
_WORK_OF_MICROSECOND = _MOST_TOKENS / 100_000
#: Work of a constructor whose time is unknown, in tokens of a prompt.
_WORK_OF_UNTRIED = _MOST_TOKENS // 16

#: Most rows that are asked early between two steps. More copies of a request find the compiled
#: edits of these.
_MOST_EARLY = 16


class Arrivals:
    """The rows that arrive between two steps."""

    __slots__ = ("_early", "_latest", "_tokens", "_unread")

    def __init__(self) -> None:
        #: Rows that wait, and the work of their constructors, in tokens of a prompt. Weak, and so
        #: only a hint: ranks release rows at different times.
        self._unread: WeakKeyDictionary[Row, int] = WeakKeyDictionary()
        self._new_interval()

    def _new_interval(self) -> None:
        self._early = self._tokens = 0
        #: Parameters and prompt that were read last.
        self._latest: tuple[Sequence[object], Sequence[int]] = (), ()

    @property
    def wait(self) -> bool:
        """Whether any row may wait for :meth:`read`."""
        return bool(self._unread)

    def start(self, row: Row, vocab_size: int | None, making: int | None = None) -> None:
        """Start a row that has just arrived, or leave it to :meth:`read`.

        Rows that read their prompt, resume tokens or make an object are left.

        Args:
            row: Row of a request that is new to this process.
            vocab_size: Number of logits in a row of the model, to ask the row early; ``None`` if
                unknown, or if the request has generated tokens.
            making: Microseconds of its constructors, the same on all ranks; ``None`` if unknown.
        """
        if row.flags.reads_prompt or row.resumed or row.flags.makes_object:
            row.wait()
            work = 0
            if row.flags.makes_object:
                work = _WORK_OF_UNTRIED
                if making is not None:
                    work = max(0, int(making * _WORK_OF_MICROSECOND))
            self._unread[row] = work
        else:
            self._start(row, vocab_size)

    def read(
        self, rows: Iterable[Row | None], vocab_size: int | None, *, alone: bool = False
    ) -> set[int]:
        """Start waiting rows, as many as the bound between two steps allows.

        The first prompt is always read, with a part of the tokens that it resumes.

        Args:
            rows: Rows of the requests that could begin now, in the same order on all ranks;
                ``None`` for a request without one.
            vocab_size: As for :meth:`start`.
            alone: Whether no batch waits meanwhile.

        Returns:
            The indices of the rows that still have to wait.
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
                row.restart()  # its first step starts it, and ends it if the start fails again
            self._unread.pop(row, None)
        self._new_interval()
        return waiting

    def _start(self, row: Row, vocab_size: int | None, *, alone: bool = False) -> int:
        """Start a row and feed it resumed tokens; return how many of these are left."""
        if not row.started:
            row.start()
        if row.resumed:
            before, room = len(row.tokens), max(0, _MOST_TOKENS - self._tokens) // _WORK_OF_RESUMED
            left = row.resume(NEVER if alone else room)
            self._tokens += (len(row.tokens) - before) * _WORK_OF_RESUMED
            if left:
                return left
        if vocab_size is not None and row.flags.early and self._early < _MOST_EARLY:
            self._early += 1
            row.ask_early(vocab_size)
        return 0

    def _has_room(self, row: Row) -> bool:
        """Tell whether a prompt is read now, and count it; the first prompt is always read."""
        params, prompt_ids = row.params, row.source.origin_input_ids
        room, tokens = _MOST_TOKENS - self._tokens, row.read_of_prompt(len(prompt_ids))
        compared = len(prompt_ids) // _COPIES_PER_READ
        if compared <= min(room, tokens) and _are_same(params, self._latest[0]):
            # Compares whole prompts: many texts may end with the same question.
            tokens = compared if same_tokens(prompt_ids, self._latest[1]) else tokens
        tokens += self._unread.get(row, 0)
        if self._tokens and tokens > room:
            return False
        self._tokens += tokens
        self._latest = params, prompt_ids
        return True


def ask_again(row: Row, vocab_size: int) -> End | None:
    """Ask for the edits of a first token that another server sampled, and log them.

    Args:
        row: Row of a request that has just arrived: its processor has seen no token. It is
            restarted, because asking may have changed its state.
        vocab_size: Number of logits in a row of the model.

    Returns:
        How the request ends with that token, or ``None`` if it goes on. Also ``None`` if the
        processor reads the logits, which the other server has.

    Raises:
        Exception: Whatever else the processor raises.
    """
    if row.dense:
        row.recorder.add(row.resumed, forced=False)
    try:
        if not row.started:
            row.start()
        row.resume()
        recording = row.ask_drafted(vocab_size, apart=False)
    except AttributeError:
        return None  # it reads the logits
    finally:
        row.restart()
    if not recording.is_empty:
        row.recorder.add(row.resumed, forced=recording.leaves_one)
    return recording.end


def _are_same(params: Sequence[object], others: Sequence[object]) -> bool:
    """Tell whether two rows have the very same parameters."""
    return len(params) == len(others) and all(map(is_, params, others))
