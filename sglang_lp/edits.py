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
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING

from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    import torch

__all__ = ["MAX_BIAS", "NEVER", "Compiled", "Edits"]

#: Largest bias on a logit, either way, all biases on it taken together. Far beyond any effect,
#: and safe in float16.
MAX_BIAS = 10_000.0

#: So many ids and more are kept as an array, whose place in the batch torch finds at once.
_LONG = 256

#: A number of steps that never pass.
NEVER = 1 << 62

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
        "_clashes",
        "_forced",
        "_logits",
        "_position",
        "finish_reason",
        "row",
        "vocab_size",
        "wake_in",
    )

    def __init__(self, vocab_size: int, logits: torch.Tensor | None = None) -> None:
        """Start without edits.

        Args:
            vocab_size: Number of logits in a row.
            logits: Shape ``(rows, vocab)``, to be looked at row by row; not changed here.
        """
        #: Number of logits in a row.
        self.vocab_size = vocab_size
        self._logits = logits
        #: The open row.
        self.row = 0
        self._position = 0
        #: After how many steps the open row wants to be looked at again.
        self.wake_in = 1
        #: Why the request of the open row ends with this token, or ``None``.
        self.finish_reason: str | None = None
        self._banned: list[tuple[int, Sequence[int]]] = []
        self._allowed: list[tuple[int, Sequence[int]]] = []
        self._forced: dict[int, int] = {}
        self._clashes: dict[int, str] = {}
        self._biased: list[tuple[int, Sequence[int], list[float]]] = []

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
            self._banned.append((self.row, ids))

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
        self._allowed.append((self.row, ids))

    def force(self, token_id: int) -> None:
        """Make this the next token: its logit becomes 0.0 and every other one ``-inf``.

        Args:
            token_id: An id in ``[0, vocab)``.

        Raises:
            ProcessorFault: The id is outside the vocabulary.
        """
        token_id = index(token_id)  # as in _ids, without its lists: a batch may force every row
        if not 0 <= token_id < self.vocab_size:
            raise self._outside(token_id)
        if self._forced.setdefault(self.row, token_id) != token_id:
            forced = self._forced[self.row]
            self._clashes[self.row] = f"tokens {forced} and {token_id} are both forced"

    def bias(self, token_ids: Iterable[int], values: Iterable[float]) -> None:
        """Add to the logits of these tokens.

        Args:
            token_ids: Ids in ``[0, vocab)``. An id given twice gets the sum.
            values: One finite number for each id, at most ``MAX_BIAS`` (10,000) either way. A
                sum beyond that is cut there.

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
            self._biased.append((self.row, ids, numbers))

    def wake_at(self, position: int) -> None:
        """Promise that this row needs no edit before the token at ``position`` (0 is the first).

        Until then ``edit`` is not called again for it. Tokens that come meanwhile still reach
        ``advance``, all at once.
        """
        self.wake_in = max(1, position - self._position)

    def rest(self) -> None:
        """Promise that this row needs no edit any more."""
        self.wake_in = NEVER

    def finish(self, reason: str) -> None:
        """End the request with the token that is sampled now.

        Its finish reason is ``stop``, with ``reason`` in the place of a matched stop string.
        Unlike an error it keeps the answer. Does nothing where no server runs the request.

        Args:
            reason: A few words for the client, unlike anything that a model writes: SGLang cuts
                the answer where it finds them in it.
        """
        self.finish_reason = reason

    # What the batch calls

    def open_row(self, row: int, position: int) -> None:
        """Point at the row whose processor is called next."""
        self.row = row
        self._position = position
        self.wake_in = 1
        self.finish_reason = None

    @property
    def open_logits(self) -> torch.Tensor:
        """A view of the open row of the logits, shape ``(vocab,)``.

        Raises:
            ValueError: These edits were made without logits.
        """
        if self._logits is None:
            raise ValueError("expected edits that were given the logits of their step")
        return self._logits[self.row]

    def drop(self, row: int) -> None:
        """Take back everything that was recorded for this row."""
        self._banned = [edit for edit in self._banned if edit[0] != row]
        self._allowed = [edit for edit in self._allowed if edit[0] != row]
        self._forced.pop(row, None)
        self._clashes.pop(row, None)
        self._biased = [edit for edit in self._biased if edit[0] != row]

    def repeat(self, other: Edits) -> None:
        """Record for the open row what ``other`` holds, whichever row it was recorded for."""
        row = self.row
        self._banned += [(row, ids) for _, ids in other._banned]
        self._allowed += [(row, ids) for _, ids in other._allowed]
        for token_id in other._forced.values():
            self.force(token_id)
        for why in other._clashes.values():
            self._clashes[row] = why
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
        conflicts = {**self._clashes}
        forced = {**self._forced}
        allowed = self._merge_allowed(forced, conflicts) if self._allowed else {}
        stride = logits.stride(0) if logits.stride(1) == 1 else logits.shape[1]
        cells = _Cells()
        if self._banned:
            cells.ban = self._ban_cells(stride, forced, allowed, conflicts)
        biases = self._merge_biases(stride, forced, conflicts) if self._biased else {}
        for row in conflicts:
            forced.pop(row, None)
            allowed.pop(row, None)
        if len(forced) + len(allowed) < logits.shape[0]:
            cells.fill.extend([*forced, *allowed])
        else:
            cells.fill_all = True
        for row in forced.keys() & {*keep_masked}:
            cells.keep.append(row * stride + forced.pop(row))
        cells.force = array("q", [row * stride + token_id for row, token_id in forced.items()])
        for row, ids_left in allowed.items():
            _extend(cells.keep, ids_left, row * stride)
        cells.bias.extend(biases)
        cells.bias_values.extend(biases.values())
        return Compiled(cells, conflicts, logits)

    def _merge_allowed(
        self, forced: dict[int, int], conflicts: dict[int, str]
    ) -> dict[int, Sequence[int]]:
        """Return what is allowed in each restricted row, bans taken away, forced rows apart."""
        allowed: dict[int, Sequence[int]] = {}
        for row, ids in self._allowed:
            allowed[row] = _both(allowed[row], ids) if row in allowed else ids
        for row in forced.keys() & allowed.keys():
            if forced[row] not in allowed.pop(row):
                conflicts[row] = f"token {forced[row]} is forced but not allowed"
        if allowed:
            banned: dict[int, set[int]] = {}
            for row, ids in self._banned:
                if row in allowed:
                    banned.setdefault(row, set()).update(ids)
            for row, out in banned.items():
                allowed[row] = [i for i in allowed[row] if i not in out]
        conflicts |= {row: "no allowed token is left" for row, ids in allowed.items() if not ids}
        return allowed

    def _ban_cells(
        self,
        stride: int,
        forced: dict[int, int],
        allowed: dict[int, Sequence[int]],
        conflicts: dict[int, str],
    ) -> array[int]:
        """Return the flat indices of the bans in rows that are neither forced nor restricted."""
        barren = self._without_a_token()
        conflicts |= dict.fromkeys(barren, "every token is banned")
        cells = array("q")
        for row, ids in self._banned:
            if row in forced:
                if forced[row] in ids:
                    conflicts[row] = f"token {forced[row]} is both forced and banned"
            elif row not in allowed and row not in barren:
                _extend(cells, ids, row * stride)
        return cells

    def _merge_biases(
        self, stride: int, forced: dict[int, int], conflicts: dict[int, str]
    ) -> dict[int, float]:
        """Return the bias of each flat index.

        Summed here and not by the device, whose order of additions is not fixed and whose
        float16 ends at 65,504.
        """
        biases: dict[int, float] = {}
        for row, ids, values in self._biased:
            if row not in conflicts and row not in forced:
                for i, value in zip(ids, values, strict=True):
                    cell = row * stride + i
                    biases[cell] = biases.get(cell, 0.0) + value
        return {cell: max(-MAX_BIAS, min(MAX_BIAS, value)) for cell, value in biases.items()}

    def _without_a_token(self) -> set[int]:
        """Find the rows in which every token is banned."""
        if sum(len(ids) for _, ids in self._banned) < self.vocab_size:
            return set()  # the usual case, at the price of one addition per edit
        count: dict[int, int] = {}
        for row, ids in self._banned:
            count[row] = count.get(row, 0) + len(ids)
        banned: dict[int, set[int]] = {}
        for row, ids in self._banned:
            if count[row] >= self.vocab_size:
                banned.setdefault(row, set()).update(ids)
        return {row for row, ids in banned.items() if len(ids) == self.vocab_size}

    def _ids(self, token_ids: Iterable[int]) -> Sequence[int]:
        # index() takes no float and no string, so that nothing odd reaches the whole batch's
        # index tensor; the range check keeps a row from writing into its neighbour.
        ids = [*map(index, token_ids)]
        if ids and (min(ids) < 0 or max(ids) >= self.vocab_size):
            raise self._outside(next(i for i in ids if not 0 <= i < self.vocab_size))
        return ids if len(ids) < _LONG else array("q", ids)

    def _outside(self, token_id: int) -> ProcessorFault:
        return ProcessorFault(
            f"token id {token_id} is outside the vocabulary of {self.vocab_size} tokens"
        )


def _both(some: Sequence[int], others: Sequence[int]) -> list[int]:
    """Return what both hold."""
    wanted = {*others}
    return [i for i in some if i in wanted]


def _extend(cells: array[int], ids: Sequence[int], base: int) -> None:
    """Add what ``ids`` are in the row that begins at ``base``."""
    if isinstance(ids, array):
        import torch

        there = array("q", bytes(ids.itemsize * len(ids)))
        read, write = (torch.frombuffer(part, dtype=torch.int64) for part in (ids, there))
        torch.add(read, base, out=write)
        cells.extend(there)
    else:
        cells.extend([base + i for i in ids])


class _Cells:
    """Flat indices into the logits by what happens there; ``fill`` holds some of the rows."""

    def __init__(self) -> None:
        self.fill_all = False
        self.fill = array("q")
        self.keep = array("q")
        self.bias = array("q")
        self.ban = array("q")
        self.force = array("q")
        self.bias_values = array("d")


class Compiled:
    """The edits of one step as index tensors, ready to be applied, more than once if need be.

    Attributes:
        conflicts: For each row whose edits leave no token, why. Such a row is not edited.
    """

    __slots__ = (
        "_ban",
        "_bias",
        "_bias_values",
        "_fill",
        "_fill_all",
        "_force",
        "_keep",
        "conflicts",
    )

    def __init__(self, cells: _Cells, conflicts: dict[int, str], logits: torch.Tensor) -> None:
        import torch

        self.conflicts = conflicts
        self._fill_all = cells.fill_all
        # 64-bit floats ride along as integers.
        values = array("q", cells.bias_values.tobytes())
        parts = (cells.fill, cells.keep, cells.bias, cells.ban, cells.force, values)
        packed = array("q")
        for part in parts:
            packed.extend(part)
        sent: torch.Tensor | None = None
        if packed:
            sent = torch.frombuffer(packed, dtype=torch.int64)
            if logits.is_cuda:
                pinned = torch.empty(len(packed), dtype=torch.int64, pin_memory=True)
                sent = pinned.copy_(sent).to(logits.device, non_blocking=True)

        def cut(part: array[int], end: int) -> torch.Tensor | None:
            # Each operation of torch costs microseconds, so none without need.
            if sent is None or not part:
                return None
            return sent if len(part) == len(packed) else sent[end - len(part) : end]

        self._fill, self._keep, self._bias, self._ban, self._force, bits = map(
            cut, parts, accumulate(map(len, parts))
        )
        self._bias_values = None if bits is None else bits.view(torch.float64).to(logits.dtype)

    def apply(self, logits: torch.Tensor) -> None:
        """Edit ``logits`` in place: shape ``(rows, vocab)``, laid out as given to ``compile``."""
        import torch

        flat = _flat(logits)
        if flat is None:  # columns are not adjacent in memory: no one flat index
            # Not contiguous(), which takes the strides of a single column as they are.
            work = logits.clone(memory_format=torch.contiguous_format)
            self.apply(work)
            logits.copy_(work)
            return
        kept = None if self._keep is None else flat.index_select(0, self._keep)
        if self._fill_all:
            logits.fill_(_MINUS_INF)
        elif self._fill is not None:
            _fill(logits, self._fill, _MINUS_INF)
        if self._keep is not None and kept is not None:
            flat.index_copy_(0, self._keep, kept)
        if self._bias is not None and self._bias_values is not None:
            flat.index_add_(0, self._bias, self._bias_values)
        if self._ban is not None:
            _fill(flat, self._ban, _MINUS_INF)
        if self._force is not None:  # at most one in each row: too few for what _fill gains
            flat.index_fill_(0, self._force, 0.0)


def _fill(tensor: torch.Tensor, indices: torch.Tensor, value: float) -> None:
    """Set what ``indices`` select of the first dimension."""
    if tensor.is_cpu:  # in less time than index_fill_ takes there
        tensor[indices] = value
    else:
        tensor.index_fill_(0, indices, value)


def _flat(logits: torch.Tensor) -> torch.Tensor | None:
    """View ``logits`` as one dimension in which row r, column c is ``r * stride(0) + c``."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        return None
    return logits.as_strided(((rows - 1) * logits.stride(0) + vocab,), (1,))
