"""The edits of one request at one step, checked and kept until the batch applies them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from operator import index

from sglang_lp.edits import MAX_BIAS, Edits
from sglang_lp.errors import ProcessorFault

__all__ = ["LONG", "NEVER", "Recording"]

#: So many ids and more are kept as an array, which torch checks and places in the batch at once.
LONG = 256

#: A position that no request reaches.
NEVER = 1 << 62


class Recording(Edits):
    """What one request wants at one step.

    Most steps record one thing or nothing, so what is not recorded stays on the class: a new
    recording costs a fifth of a microsecond (``benchmarks/cost.py``, ``forced-256``).

    Attributes:
        banned: Lists of ids.
        allowed: Lists of ids.
        forced: The forced token.
        clash: Why the forced tokens contradict each other.
        biased: Lists of ids, each with its values.
        standing: What holds at every later step, too.
        wake: Position before which no edit is needed.
        reason: Why the request ends with this token.
    """

    banned: Sequence[Sequence[int]] = ()
    allowed: Sequence[Sequence[int]] = ()
    forced: int | None = None
    clash: str | None = None
    biased: Sequence[tuple[Sequence[int], array[float]]] = ()
    standing: Recording | None = None
    wake: int | None = None
    reason: str | None = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def ban(self, token_ids: Iterable[int]) -> None:
        ids = self._checked(token_ids)
        if ids:
            self.banned = (*self.banned, ids)

    def allow_only(self, token_ids: Iterable[int]) -> None:
        ids = self._checked(token_ids)
        if not ids:
            raise ProcessorFault("allow_only() needs at least one token id, got none")
        self.allowed = (*self.allowed, ids)

    def force(self, token_id: int) -> None:
        token_id = index(token_id)  # as in _checked, without its lists: a batch may force every row
        if not 0 <= token_id < self.vocab_size:
            raise self._outside(token_id)
        if self.forced is None:
            self.forced = token_id
        elif self.forced != token_id:
            self.clash = f"tokens {self.forced} and {token_id} are both forced"

    def bias(self, token_ids: Iterable[int], values: Iterable[float]) -> None:
        ids = self._checked(token_ids)
        numbers = array("d", [float(value) for value in values])
        if len(ids) != len(numbers):
            raise ProcessorFault(f"bias() got {len(ids)} token ids and {len(numbers)} values")
        # Also refuses NaN, which compares as false.
        if not all(-MAX_BIAS <= number <= MAX_BIAS for number in numbers):
            raise ProcessorFault(f"bias() takes finite values up to {MAX_BIAS:.0f} either way")
        if ids:
            self.biased = (*self.biased, (ids, numbers))

    def always(self) -> Edits:
        if self.standing is None:
            self.standing = Recording(self.vocab_size)
        return self.standing

    def wake_at(self, position: int) -> None:
        self.wake = index(position)

    def rest(self) -> None:
        self.wake = NEVER

    def finish(self, reason: str) -> None:
        self.reason = reason

    def hold(self) -> None:
        """Make what holds at every step an edit of this one."""
        if self.standing is not None:
            self.add(self.standing)
            self.standing = None

    @property
    def is_empty(self) -> bool:
        """Whether no logit changes."""
        return self.forced is None and not (self.banned or self.allowed or self.biased)

    def add(self, other: Recording) -> None:
        """Record what ``other`` holds."""
        self.banned = (*self.banned, *other.banned)
        self.allowed = (*self.allowed, *other.allowed)
        self.biased = (*self.biased, *other.biased)
        if other.forced is not None:
            self.force(other.forced)
        self.clash = self.clash or other.clash

    def _checked(self, token_ids: Iterable[int]) -> Sequence[int]:
        # index() takes no float and no string, so that nothing odd reaches the whole batch's
        # index tensor; the range check keeps a row from writing into its neighbour.
        ids = [*map(index, token_ids)]
        if ids and (min(ids) < 0 or max(ids) >= self.vocab_size):
            raise self._outside(next(i for i in ids if not 0 <= i < self.vocab_size))
        return ids if len(ids) < LONG else array("q", ids)

    def _outside(self, token_id: int) -> ProcessorFault:
        return ProcessorFault(
            f"token id {token_id} is outside the vocabulary of {self.vocab_size} tokens"
        )
