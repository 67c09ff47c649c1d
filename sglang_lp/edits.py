"""What processors want done to the next-token logits, and doing it to a whole batch at once.

Edits are declarations, not steps, so their order does not matter: biases add up, ``allow_only``
sets intersect, ``ban`` takes away, and ``force`` leaves one token. What contradicts itself is a
conflict: that row is left as it is and reported.

However many rows are edited, applying costs one host-to-device copy and at most six tensor
operations, in place, without waiting for the device.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING

from sglang_lp.errors import ProcessorFault
from sglang_lp.request import NEVER

if TYPE_CHECKING:
    import torch

__all__ = ["MAX_BIAS", "Compiled", "Edits"]

#: Largest bias on a logit, either way. Far beyond any effect, and safe in float16.
MAX_BIAS = 10_000.0

_MINUS_INF = -math.inf


class Edits:
    """Collects the edits of all rows of one step.

    A processor's ``edit`` gets it already pointed at the row of its request; it calls any of
    :meth:`ban`, :meth:`allow_only`, :meth:`force` and :meth:`bias`, and :meth:`wake_at` if it
    knows when it needs to look again.
    """

    __slots__ = (
        "_allowed",
        "_banned",
        "_biased",
        "_forced",
        "_position",
        "_row",
        "_wake_in",
        "vocab_size",
    )

    def __init__(self, vocab_size: int) -> None:
        #: Number of logits in a row.
        self.vocab_size = vocab_size
        self._row = 0
        self._position = 0
        self._wake_in: int = 1
        self._banned: list[tuple[int, list[int]]] = []
        self._allowed: list[tuple[int, list[int]]] = []
        self._forced: list[tuple[int, int]] = []
        self._biased: list[tuple[int, list[int], list[float]]] = []

    # What a processor calls

    def ban(self, token_ids: Iterable[int]) -> None:
        """Set the logits of these tokens to ``-inf``.

        Args:
            token_ids: Ids in ``[0, vocab)``. None at all is allowed and does nothing.

        Raises:
            ProcessorFault: An id is outside the vocabulary.
        """
        ids = self._ids(token_ids)
        if ids:
            self._banned.append((self._row, ids))

    def allow_only(self, token_ids: Iterable[int]) -> None:
        """Set the logits of all other tokens to ``-inf``; these keep theirs.

        Args:
            token_ids: Ids in ``[0, vocab)``, at least one.

        Raises:
            ProcessorFault: No id, or one outside the vocabulary.
        """
        ids = self._ids(token_ids)
        if not ids:
            raise ProcessorFault("allow_only() needs at least one token id, got none")
        self._allowed.append((self._row, ids))

    def force(self, token_id: int) -> None:
        """Make this the next token: its logit becomes 0.0 and every other one ``-inf``.

        Args:
            token_id: An id in ``[0, vocab)``.

        Raises:
            ProcessorFault: The id is outside the vocabulary.
        """
        self._forced.append((self._row, *self._ids((token_id,))))

    def bias(self, token_ids: Iterable[int], values: Iterable[float]) -> None:
        """Add to the logits of these tokens.

        Args:
            token_ids: Ids in ``[0, vocab)``. An id given twice gets both.
            values: One finite number for each id, at most ``MAX_BIAS`` (10,000) either way.

        Raises:
            ProcessorFault: An id is outside the vocabulary, the lengths differ, or a value is
                not finite or too large.
        """
        ids = self._ids(token_ids)
        numbers = [float(value) for value in values]
        if len(ids) != len(numbers):
            raise ProcessorFault(f"bias() got {len(ids)} token ids and {len(numbers)} values")
        if not all(abs(number) <= MAX_BIAS for number in numbers):  # also false for NaN
            raise ProcessorFault(f"bias() takes finite values up to {MAX_BIAS:.0f} either way")
        if ids:
            self._biased.append((self._row, ids, numbers))

    def wake_at(self, position: int) -> None:
        """Promise that this row needs no edit before the token at ``position`` (0 is the first).

        Until then ``edit`` is not called again for it. Tokens that come meanwhile still reach
        ``advance``, all at once.
        """
        self._wake_in = max(1, position - self._position)

    def rest(self) -> None:
        """Promise that this row needs no edit any more."""
        self._wake_in = NEVER

    # What the batch calls

    def open_row(self, row: int, position: int) -> None:
        """Point at the row whose processor is called next."""
        self._row = row
        self._position = position
        self._wake_in = 1

    @property
    def wake_in(self) -> int:
        """After how many steps the open row wants to be looked at again."""
        return self._wake_in

    def drop(self, row: int) -> None:
        """Take back everything that was recorded for this row."""
        self._banned = [edit for edit in self._banned if edit[0] != row]
        self._allowed = [edit for edit in self._allowed if edit[0] != row]
        self._forced = [edit for edit in self._forced if edit[0] != row]
        self._biased = [edit for edit in self._biased if edit[0] != row]

    def touches(self, row: int) -> bool:
        """Tell whether anything was recorded for this row."""
        kinds: tuple[Sequence[tuple[int, object] | tuple[int, object, object]], ...] = (
            self._banned,
            self._allowed,
            self._forced,
            self._biased,
        )
        return any(edit[0] == row for kind in kinds for edit in kind)

    def repeated_from(self, other: Edits, row: int) -> None:
        """Record for ``row`` what ``other`` holds, whichever row it was recorded for."""
        self._banned += [(row, ids) for _, ids in other._banned]
        self._allowed += [(row, ids) for _, ids in other._allowed]
        self._forced += [(row, token_id) for _, token_id in other._forced]
        self._biased += [(row, ids, values) for _, ids, values in other._biased]

    def compile(self, logits: torch.Tensor, *, keep_masked: Iterable[int] = ()) -> Compiled | None:
        """Turn what was recorded into index tensors on the device of ``logits``.

        Args:
            logits: Shape ``(rows, vocab)``, any float dtype; only its layout is read.
            keep_masked: Rows in which a forced token keeps its logit instead of getting 0.0, so
                that a token that a grammar masked stays masked.

        Returns:
            The compiled edits, or ``None`` if there is nothing to do.
        """
        if not (self._banned or self._allowed or self._forced or self._biased):
            return None
        return _compile(self, logits, frozenset(keep_masked))

    def _ids(self, token_ids: Iterable[int]) -> list[int]:
        # index() takes no float and no string, so that nothing odd reaches the whole batch's
        # index tensor; the range check keeps a row from writing into its neighbour.
        ids = [*map(index, token_ids)]
        if ids and (min(ids) < 0 or max(ids) >= self.vocab_size):
            wrong = next(i for i in ids if not 0 <= i < self.vocab_size)
            raise ProcessorFault(
                f"token id {wrong} is outside the vocabulary of {self.vocab_size} tokens"
            )
        return ids


class Compiled:
    """The edits of one step as index tensors, ready to be applied, more than once if need be.

    Attributes:
        conflicts: For each row whose edits leave no token, why. Such a row is not edited.
    """

    __slots__ = ("_banned", "_bias", "_biased", "_filled", "_forced", "_kept", "conflicts")

    def __init__(self, conflicts: dict[int, str]) -> None:
        self.conflicts = conflicts
        self._filled: torch.Tensor | None = None
        self._kept: torch.Tensor | None = None
        self._biased: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None
        self._banned: torch.Tensor | None = None
        self._forced: torch.Tensor | None = None

    def apply(self, logits: torch.Tensor) -> None:
        """Edit ``logits`` in place: shape ``(rows, vocab)``, as given to ``compile``."""
        flat = _flat(logits)
        if flat is None:  # columns are not adjacent in memory: no one flat index
            work = logits.contiguous()
            self.apply(work)
            logits.copy_(work)
            return
        kept = flat.index_select(0, self._kept) if self._kept is not None else None
        if self._filled is not None:
            if len(self._filled) == len(logits):
                logits.fill_(_MINUS_INF)
            elif logits.is_cuda:
                logits.index_fill_(0, self._filled, _MINUS_INF)
            else:  # measured on CPU: twice as fast as index_fill_ over rows
                logits[self._filled] = _MINUS_INF
        if self._kept is not None and kept is not None:
            flat.index_copy_(0, self._kept, kept)
        if self._biased is not None and self._bias is not None:
            flat.index_add_(0, self._biased, self._bias)
        if self._banned is not None:
            flat.index_fill_(0, self._banned, _MINUS_INF)
        if self._forced is not None:
            flat.index_fill_(0, self._forced, 0.0)


def _flat(logits: torch.Tensor) -> torch.Tensor | None:
    """View ``logits`` as one dimension in which row r, column c is ``r * stride(0) + c``."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        return None
    return logits.as_strided(((rows - 1) * logits.stride(0) + vocab,), (1,))


def _compile(edits: Edits, logits: torch.Tensor, keep_masked: frozenset[int]) -> Compiled:
    stride = logits.stride(0) if logits.stride(1) == 1 else logits.shape[1]
    conflicts: dict[int, str] = {}
    forced: dict[int, int] = {}
    for row, token_id in edits._forced:
        if forced.setdefault(row, token_id) != token_id:
            conflicts[row] = f"tokens {forced[row]} and {token_id} are both forced"
    allowed: dict[int, set[int]] = {}
    for row, ids in edits._allowed:
        allowed[row] = allowed[row].intersection(ids) if row in allowed else set(ids)

    barren = _without_a_token(edits)
    conflicts |= dict.fromkeys(barren, "every token is banned")
    ban_cells = array("q")
    for row, ids in edits._banned:
        if row in forced:
            if forced[row] in ids:
                conflicts[row] = f"token {forced[row]} is both forced and banned"
        elif row in allowed:
            allowed[row].difference_update(ids)
        elif row not in barren:
            base = row * stride
            ban_cells.extend([base + i for i in ids] if base else ids)

    for row, ids_left in allowed.items():
        if row in forced:
            if forced[row] not in ids_left:
                conflicts[row] = f"token {forced[row]} is forced but not allowed"
        elif not ids_left:
            conflicts[row] = "no allowed token is left"

    fill_rows = array("q", [row for row in forced.keys() | allowed.keys() if row not in conflicts])
    keep_cells = array("q")
    force_cells = array("q")
    for row, token_id in forced.items():
        if row not in conflicts:
            (keep_cells if row in keep_masked else force_cells).append(row * stride + token_id)
    for row, ids_left in allowed.items():
        if row not in conflicts and row not in forced:
            keep_cells.extend([row * stride + i for i in sorted(ids_left)])

    bias_cells = array("q")
    bias_values = array("d")
    for row, ids, values in edits._biased:
        if row not in conflicts and row not in forced:
            bias_cells.extend([row * stride + i for i in ids])
            bias_values.extend(values)

    compiled = Compiled(conflicts)
    parts = (fill_rows, keep_cells, ban_cells, force_cells, bias_cells)
    fill, keep, ban, force, bias, numbers = _to_device(parts, bias_values, logits)
    compiled._filled, compiled._kept = fill, keep
    compiled._banned, compiled._forced = ban, force
    compiled._biased, compiled._bias = bias, numbers
    return compiled


def _without_a_token(edits: Edits) -> set[int]:
    """Find the rows in which every token is banned."""
    if sum(len(ids) for _, ids in edits._banned) < edits.vocab_size:
        return set()  # the usual case, at the price of one addition per edit
    banned: dict[int, set[int]] = {}
    for row, ids in edits._banned:
        banned.setdefault(row, set()).update(ids)
    return {row for row, ids in banned.items() if len(ids) == edits.vocab_size}


def _to_device(
    parts: Sequence[array[int]], values: array[float], logits: torch.Tensor
) -> list[torch.Tensor | None]:
    """Send all index lists and the values in one copy; ``None`` stands for an empty one."""
    import torch

    packed = array("q")
    for part in parts:
        packed.extend(part)
    packed.frombytes(values.tobytes())  # the values' 64 bits ride along as integers
    sizes = [*map(len, parts), len(values)]
    if not packed:
        return [None] * len(sizes)
    host = torch.frombuffer(packed, dtype=torch.int64)
    if logits.is_cuda:
        pinned = torch.empty(len(packed), dtype=torch.int64, pin_memory=True)
        host = pinned.copy_(host).to(logits.device, non_blocking=True)
    pieces = [piece if len(piece) else None for piece in host.split(sizes)]
    if pieces[-1] is not None:
        pieces[-1] = pieces[-1].view(torch.float64).to(logits.dtype)
    return pieces
