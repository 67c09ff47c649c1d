"""The edits of one request at one step, checked and kept until the batch applies them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, NamedTuple

from sglang_lp.edits import LENGTH, MAX_BIAS, MAX_FACTOR, NEVER, STOP, Edits, End
from sglang_lp.edits.ids import LONG, Ids, check_id, checked
from sglang_lp.edits.questions import Question
from sglang_lp.errors import ProcessorFault, shown

if TYPE_CHECKING:
    from sglang_lp.request import Answer
    from sglang_lp.watermark.marks import Mark

__all__ = ["Conditional", "Recording"]


class Conditional(NamedTuple):
    """Edits that depend on the answer to a question.

    Attributes:
        question: The question.
        token_id: The token that is forced if the answer is yes.
        otherwise: The edits if it is no.
    """

    question: Question
    token_id: int
    otherwise: Recording


#: Longest list of allowed tokens that is compared with the others.
_MAX_COMPARED = 8


class Recording(Edits):
    """The recorded edits of one processor at one step.

    A processor that runs others hands a new recording to the ``edit`` of each, and adds the
    recording to its own edits with :meth:`~sglang_lp.edits.Edits.add`. ``add`` leaves out
    ``standing``, ``wake``, ``holds`` and ``end``. Read the attributes; do not change them.

    Args:
        vocab_size: Number of logits in a row.

    Attributes:
        banned: Lists of ids.
        allowed: Lists of ids.
        forced: The forced token.
        clash: Message on forced tokens that contradict each other.
        biased: Lists of ids, each with a value for each id or a value for all.
        factor: Multiplies all logits, unless it is ``None``.
        sigmas: Standard deviations below the largest logit within which tokens stay.
        marked: The watermark, if there is one.
        pooled: Lists of ids, each with the token that gets their probability.
        conditional: Edits that depend on an answer of the device.
        standing: The edits of :meth:`always`, which also hold at every later step.
        wake: Position up to which ``edit`` is not called.
        holds: Whether the edits hold up to ``wake``.
        end: The end of the request with this token, if it ends.
        compiled: Parts of compiled edits that were made before the step; keeps them alive.
    """

    # Most steps record one edit or none, so the defaults stay on the class and a new recording
    # sets one attribute (``benchmarks/cost``, ``forced-256``).
    banned: Sequence[Ids | list[int]] = ()
    allowed: Sequence[Ids | list[int]] = ()
    forced: int | None = None
    clash: str | None = None
    biased: Sequence[tuple[Ids | list[int], array[float] | float]] = ()
    factor: float | None = None
    sigmas: float | None = None
    marked: Mark | None = None
    pooled: Sequence[tuple[Ids | list[int], int]] = ()
    conditional: Sequence[Conditional] = ()
    standing: Recording | None = None
    wake: int | None = None
    holds: bool = False
    end: End | None = None
    compiled: Sequence[object] = ()

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def ban(self, token_ids: Iterable[int]) -> None:
        ids = checked(token_ids, self.vocab_size)
        if ids:
            self.banned = (*self.banned, ids)

    def allow_only(self, token_ids: Iterable[int]) -> None:
        ids = checked(token_ids, self.vocab_size)
        if not ids:
            raise ProcessorFault("allow_only() needs at least one token id, got none")
        self.allowed = (*self.allowed, ids)

    def force(self, token_id: int) -> None:
        token_id = check_id(token_id, self.vocab_size)
        if self.forced is None:
            self.forced = token_id
        elif self.forced != token_id:
            self.clash = f"tokens {self.forced} and {token_id} are both forced"

    def force_if(self, answer: Answer, token_id: int) -> Edits:
        token_id = check_id(token_id, self.vocab_size)
        if not isinstance(answer, Question):
            if not answer:
                return self
            self.force(token_id)
            return Recording(self.vocab_size)
        otherwise = Recording(self.vocab_size)
        self.conditional = (*self.conditional, Conditional(answer, token_id, otherwise))
        return otherwise

    def bias(self, token_ids: Iterable[int], values: Iterable[float] | float) -> None:
        ids = checked(token_ids, self.vocab_size)
        numbers: array[float] | float
        if isinstance(values, int | float):
            numbers = float(values)
            moderate = -MAX_BIAS <= numbers <= MAX_BIAS
        else:
            numbers = array("d", values if isinstance(values, array) else map(float, values))
            if len(ids) != len(numbers):
                raise ProcessorFault(f"bias() got {len(ids)} token ids and {len(numbers)} values")
            moderate = _moderate(numbers)
        if not moderate:
            values = [numbers] if isinstance(numbers, float) else numbers
            wrong = next(value for value in values if not abs(value) <= MAX_BIAS)
            raise ProcessorFault(
                f"bias() takes values from {-MAX_BIAS:.0f} to {MAX_BIAS:.0f}, got {wrong}"
            )
        if ids:
            self.biased = (*self.biased, (ids, numbers))

    def scale(self, factor: float) -> None:
        if not 1 / MAX_FACTOR <= factor <= MAX_FACTOR:
            raise ProcessorFault(
                f"scale() takes a factor from {1 / MAX_FACTOR:g} to {MAX_FACTOR:g}, got "
                f"{shown(factor)}"
            )
        self.factor = _pick(max, self.factor, float(factor))

    def keep_near_top(self, sigmas: float) -> None:
        if not 0 < sigmas < math.inf:
            raise ProcessorFault(
                f"keep_near_top() takes a finite number above 0, got {shown(sigmas)}"
            )
        self.sigmas = _pick(min, self.sigmas, float(sigmas))

    def mark(self, mark: Mark) -> None:
        self.marked = self.marked or mark

    def pool(self, token_ids: Iterable[int], into: int) -> None:
        ids, into = checked(token_ids, self.vocab_size), check_id(into, self.vocab_size)
        if into in ids:
            raise ProcessorFault(f"pool() needs a token outside the pooled ids, got {into} in both")
        if ids:
            self.pooled = (*self.pooled, (ids, into))

    def always(self) -> Edits:
        if self.standing is None:
            self.standing = Recording(self.vocab_size)
        return self.standing

    def wake_at(self, position: int) -> None:
        self.wake, self.holds = index(position), False

    def hold_until(self, position: int) -> None:
        self.wake, self.holds = index(position), True

    def rest(self) -> None:
        self.wake, self.holds = NEVER, False

    def finish(self, reason: str, kind: str = STOP) -> None:
        if kind not in {STOP, LENGTH}:
            raise ProcessorFault(
                f"finish() takes the kind {STOP!r} or {LENGTH!r}, got {shown(kind)}"
            )
        try:
            text = str.encode(reason).decode()  # what SGLang's processes can send
        except (TypeError, UnicodeEncodeError):
            raise ProcessorFault(f"finish() takes text for a reason, got {shown(reason)}") from None
        self.end = End(text, kind)

    def fold_standing(self) -> None:
        """Move the standing edits into the edits of this step."""
        if self.standing is not None:
            self.standing.check_lasting()
            self.add(self.standing)
            self.standing = None

    def check_lasting(self) -> None:
        """Refuse edits that cannot hold at every step.

        Raises:
            ProcessorFault: A pool, or a conditional edit.
        """
        if self.pooled:
            raise ProcessorFault("pool() is for one step; declare it anew at each")
        if self.conditional:
            raise ProcessorFault("force_if() is for one step; ask anew at each")
        if self.marked is not None:
            raise ProcessorFault("mark() is for one step; declare it anew at each")

    @property
    def is_empty(self) -> bool:
        """Whether no logit changes."""
        return self.forced is None and not (self.edits_else or self.conditional)

    @property
    def edits_else(self) -> bool:
        """Whether a logit changes for another reason than a forced token."""
        return bool(
            self.banned
            or self.allowed
            or self.biased
            or self.pooled
            or self.sigmas is not None
            or self.factor is not None
            or self.marked is not None
        )

    @property
    def only_excludes(self) -> bool:
        """Whether the remaining tokens keep their relative probabilities."""
        held = self.standing is None or self.standing.only_excludes
        return (
            held
            and not (self.biased or self.pooled)
            and self.factor is None
            and self.marked is None
            and all(one.otherwise.only_excludes for one in self.conditional)
        )

    @property
    def only_allowed(self) -> Ids | list[int] | None:
        """The only tokens that stay, if the edits of this step do nothing but allow one list."""
        if len(self.allowed) != 1 or self.forced is not None or self.conditional:
            return None
        if self.banned or self.biased or self.pooled:
            return None
        if self.sigmas is not None or self.factor is not None or self.marked is not None:
            return None
        return self.allowed[0]

    @property
    def leaves_one(self) -> bool:
        """Whether exactly one token remains, as far as short lists of allowed tokens tell."""
        if self.forced is not None:
            return True
        if not self.allowed:
            return False
        shortest = min(self.allowed, key=len)
        if len(shortest) == 1:
            return True
        if len(shortest) > _MAX_COMPARED:
            return False
        left = {
            token_id
            for token_id in shortest
            if all(token_id in ids for ids in self.allowed)
            and not any(token_id in ids for ids in self.banned)
        }
        return len(left) == 1

    def add(self, other: Edits) -> None:
        if not isinstance(other, Recording):
            raise ProcessorFault(f"add() takes a Recording, got {shown(other)}")
        # Most of these are empty (``benchmarks/drafts/at_work``, forced words).
        if other.banned:
            self.banned = (*self.banned, *other.banned)
        if other.allowed:
            self.allowed = (*self.allowed, *other.allowed)
        if other.biased:
            self.biased = (*self.biased, *other.biased)
        if other.factor is not None:
            self.factor = _pick(max, self.factor, other.factor)
        if other.sigmas is not None:
            self.sigmas = _pick(min, self.sigmas, other.sigmas)
        if other.pooled:
            self.pooled = (*self.pooled, *other.pooled)
        if other.conditional:
            self.conditional = (*self.conditional, *other.conditional)
        if other.forced is not None:
            self.force(other.forced)
        self.clash = self.clash or other.clash
        self.marked = self.marked or other.marked


def _pick(
    best: Callable[[float, float], float], one: float | None, other: float | None
) -> float | None:
    """Return the smaller or larger of two numbers, either of which may be missing."""
    if one is None or other is None:
        return one if other is None else other
    return best(one, other)


def _moderate(numbers: array[float]) -> bool:
    """Return whether every bias is in its range."""
    if len(numbers) >= LONG:
        import torch

        return bool((torch.frombuffer(numbers, dtype=torch.float64).abs() <= MAX_BIAS).all())
    if not numbers:
        return True
    # Neither min() nor max() sees every NaN, but a sum does.
    return min(numbers) >= -MAX_BIAS and max(numbers) <= MAX_BIAS and not math.isnan(sum(numbers))
