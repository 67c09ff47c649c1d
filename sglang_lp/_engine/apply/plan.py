"""The edits of a whole batch as one set of tensor operations.

However many rows are edited, applying costs one host-to-device copy and at most six tensor
operations, in place, without waiting for the device. Five cases cost more:

- rows whose logits are all multiplied: one operation for all of them;
- rows that keep only logits near their largest: some twenty operations for all of them;
- rows with a watermark: as many operations as its scheme takes, for all of them;
- a question that the device answers: a dozen operations for all of them;
- wide edits, of thousands of tokens: one or two operations for each run of rows that share them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence, Sized
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from sglang_lp._engine.apply.device import device_of
from sglang_lp._engine.apply.near_top import NearTop
from sglang_lp._engine.apply.plan_builder import Indices, PlanBuilder

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.answers import Answers
    from sglang_lp._engine.apply.deciding import DeviceQuestions
    from sglang_lp._engine.apply.reading import Logits
    from sglang_lp.watermark.marks import Mark, Scheme, Send

_MINUS_INF = -math.inf

_Shared = TypeVar("_Shared")


class Plan:
    """Edits as index tensors, ready to be applied, more than once if need be.

    Attributes:
        conflicts: For each row whose edits leave no token, why. Such a row is not edited.
        factors: Factors of all rows, shape ``(rows, 1)``, or ``None`` if no row is scaled.
        near_top: Rows that keep only logits near their largest, or ``None``.
        marks: Each watermark with its numbers on the device, and the number of rows that it marks.
    """

    __slots__ = (
        "_ban",
        "_bias",
        "_bias_values",
        "_decisions",
        "_device",
        "_fill",
        "_fill_runs",
        "_force",
        "_keep",
        "_masked_runs",
        "conflicts",
        "factors",
        "marks",
        "near_top",
    )

    def __init__(self, builder: PlanBuilder, logits: torch.Tensor) -> None:
        """Send the edits to the device of ``logits``, whose layout they are for."""
        import torch

        self._device = device = device_of(logits)
        self.conflicts = builder.conflicts
        self._masked_runs = _runs(builder.masked)
        self._fill_runs = _slices(builder.fill)
        by_runs = device.ROW_BY_ROW or len(self._fill_runs) == 1
        fill = array("q") if by_runs else builder.fill
        asked = Indices()
        if builder.decisions:
            asked.extend(builder.decisions.packed(), 0)
        parts: tuple[array[int] | Indices, ...] = (
            fill,
            builder.keep,
            builder.bias,
            builder.ban,
            builder.force,
            builder.values,  # 64-bit floats, sent as integers
            builder.near_top,
            array("q", builder.sigmas.tobytes()),
            _factors(builder),
            asked,
            *(
                _marks(scheme, marks, logits, device.send)
                for scheme, marks in builder.marks.items()
            ),
        )
        ends = [*accumulate(len(part) for part in parts)]
        sent: torch.Tensor | None = None
        if ends[-1]:
            sent = device.send(_packed(parts, ends[-1]), logits.device)

        def cut(part: Sized, end: int) -> torch.Tensor | None:
            # No operation of torch without need.
            if sent is None or not len(part):
                return None
            return sent if len(part) == ends[-1] else sent[end - len(part) : end]

        self._fill, self._keep, self._bias, self._ban, self._force, bits, *late = (
            cut(part, end) for part, end in zip(parts, ends, strict=True)
        )
        rows, sigmas, factors, numbers, *marked = late
        self.factors: torch.Tensor | None = None
        if factors is not None:
            self.factors = factors.view(torch.float32)[: builder.rows, None]
        self.near_top: NearTop | None = None
        if rows is not None and sigmas is not None:
            self.near_top = NearTop(rows, sigmas.view(torch.float64).float()[:, None])
        self._decisions: DeviceQuestions | None = None
        if numbers is not None:
            self._decisions = builder.decisions
            self._decisions.take(numbers)
        self.marks = [
            (scheme, sent, len(marks))
            for (scheme, marks), sent in zip(builder.marks.items(), marked, strict=True)
            if sent is not None
        ]
        self._bias_values = None if bits is None else bits.view(torch.float64).to(logits.dtype)

    def decide(self, read: Logits, answers: Answers) -> None:
        """Let the device answer the open questions, before any edit is applied.

        Args:
            read: The logits.
            answers: Receives the answers.
        """
        if self._decisions is not None:
            flat = _flat(read.tensor)
            flat = _contiguous(read.tensor).view(-1) if flat is None else flat
            self._decisions.judge(flat, read, answers)

    def apply(self, logits: torch.Tensor) -> None:
        """Edit ``logits`` in place: shape ``(rows, vocab)``, laid out as the plan was made for."""
        flat = _flat(logits)
        if flat is None:  # columns are not adjacent in memory: no one flat index
            work = _contiguous(logits)
            self.apply(work)
            logits.copy_(work)
            return
        decisions = self._decisions
        if decisions is None:
            self._write(logits, flat)
            return
        kept = decisions.keep(flat)
        self._write(logits, flat)
        decisions.apply(logits, flat, kept)

    def _write(self, logits: torch.Tensor, flat: torch.Tensor) -> None:
        for rows, edits in self._masked_runs:
            self._device.mask_rows(logits[rows], edits)
        kept = None if self._keep is None else flat.index_select(0, self._keep)
        if self._fill is not None:
            logits.index_fill_(0, self._fill, _MINUS_INF)
        else:
            for run in self._fill_runs:
                logits[run].fill_(_MINUS_INF)
        if self._keep is not None and kept is not None:
            flat.index_copy_(0, self._keep, kept)
        if self._bias is not None and self._bias_values is not None:
            flat.index_add_(0, self._bias, self._bias_values)
        if self._ban is not None:
            self._device.fill(flat, self._ban, _MINUS_INF)
        if self._force is not None:
            flat.index_fill_(0, self._force, 0.0)


def _factors(builder: PlanBuilder) -> array[int]:
    """Return the bits of each row's factor, two in an integer; nothing if no row is scaled."""
    factors = array("f")
    if builder.factors:
        factors = array("f", [1.0]) * (builder.rows + builder.rows % 2)
        for row, factor in builder.factors.items():
            factors[row] = factor
    return array("q", factors.tobytes())


def _marks(
    scheme: Scheme, marks: Sequence[tuple[int, Mark]], logits: torch.Tensor, send: Send
) -> array[int]:
    """Return the numbers by which the device marks rows."""
    rows, own = zip(*marks, strict=True)
    return array("q", scheme.pack(rows, own, logits, send).tobytes())


def _runs(rows: Iterable[tuple[int, _Shared]]) -> list[tuple[slice, _Shared]]:
    """Join adjacent rows that share the same object."""
    runs: list[tuple[slice, _Shared]] = []
    for row, shared in rows:
        if runs and runs[-1][0].stop == row and runs[-1][1] is shared:
            runs[-1] = slice(runs[-1][0].start, row + 1), shared
        else:
            runs.append((slice(row, row + 1), shared))
    return runs


def _slices(rows: array[int]) -> list[slice]:
    """Return distinct rows as slices."""
    if rows and (last := max(rows)) - (first := min(rows)) == len(rows) - 1:
        return [slice(first, last + 1)]
    return [run for run, _ in _runs((row, None) for row in rows)]


def _packed(parts: Sequence[array[int] | Indices], length: int) -> torch.Tensor:
    """Return all indices one after the other."""
    import torch

    if not any(isinstance(part, Indices) and part.long for part in parts):
        packed = array("q")
        for part in parts:
            packed.extend(part.short if isinstance(part, Indices) else part)
        return torch.frombuffer(packed, dtype=torch.int64)
    import numpy as np

    sent = np.empty(length, dtype=np.int64)
    at = 0
    for part in parts:
        short, long = (part.short, part.long) if isinstance(part, Indices) else (part, [])
        if short:
            sent[at : at + len(short)] = short
            at += len(short)
        for ids, bases in long:  # 64-bit floats, sent as integers
            indices = ids.numpy().view(np.int64)
            count = len(indices) * len(bases)
            out = sent[at : at + count].reshape(len(bases), -1)
            np.add(np.array(bases)[:, None], indices, out=out)
            at += count
    return torch.from_numpy(sent)


def _contiguous(logits: torch.Tensor) -> torch.Tensor:
    """Return a copy; contiguous() takes the strides of a single column as they are."""
    import torch

    return logits.clone(memory_format=torch.contiguous_format)


def _flat(logits: torch.Tensor) -> torch.Tensor | None:
    """View ``logits`` as one dimension in which row r, column c is ``r * stride(0) + c``."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        return None
    return logits.as_strided(((rows - 1) * logits.stride(0) + vocab,), (1,))


def apply_last(logits: torch.Tensor, plans: Sequence[Plan]) -> None:
    """Keep only logits near the largest, scale rows and mark them, after all other edits."""
    kept = [plan.near_top for plan in plans if plan.near_top is not None]
    if kept:
        device_of(logits).keep_near_top(logits, kept)
    for plan in plans:
        if plan.factors is not None:
            device_of(logits).scale(logits, plan.factors)
    for plan in plans:
        for scheme, numbers, count in plan.marks:
            scheme.apply(logits, numbers, count)
