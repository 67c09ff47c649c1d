"""The edits of a whole batch as one set of tensor operations.

However many rows are edited, applying costs one host-to-device copy and at most six tensor
operations, in place, without waiting for the device.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence, Sized
from itertools import accumulate
from typing import TYPE_CHECKING

from sglang_lp._engine.recording import Recording
from sglang_lp.edits import MAX_BIAS

if TYPE_CHECKING:
    import torch


__all__ = ["Cells", "Plan", "Standing", "place", "place_standing"]

_MINUS_INF = -math.inf


class _Part:
    """Flat indices into the logits."""

    __slots__ = ("long", "short")

    def __init__(self) -> None:
        self.short = array("q")
        #: Long lists, each with the index at which its row begins.
        self.long: list[tuple[array[int], int]] = []

    def extend(self, ids: Sequence[int], base: int) -> None:
        if isinstance(ids, array):
            self.long.append((ids, base))
        else:
            self.short.extend([base + i for i in ids])

    def __len__(self) -> int:
        return len(self.short) + sum(len(ids) for ids, _ in self.long)


class Cells:
    """What happens where: the edits of several rows, still on the host.

    Attributes:
        stride: Distance between rows in the flat logits.
        fill: Rows that become ``-inf``.
        keep: Cells of these rows that stay as they are.
        bias: Cells that are biased, each once, and ``values`` their biases.
        ban: Cells that become ``-inf``.
        force: Cells that become 0.0.
        conflicts: For each row whose edits leave no token, why. Such a row is not edited.
    """

    __slots__ = ("ban", "bias", "conflicts", "fill", "force", "keep", "stride", "values")

    def __init__(self, logits: torch.Tensor) -> None:
        vocab = logits.shape[1]
        self.stride: int = logits.stride(0) if logits.stride(1) == 1 else vocab
        self.fill = array("q")
        self.keep = _Part()
        self.bias = _Part()
        self.values = array("d")
        self.ban = _Part()
        self.force = array("q")
        self.conflicts: dict[int, str] = {}

    def force_one(self, row: int, token_id: int, *, keep_masked: bool) -> None:
        """Leave one token in a row."""
        self.fill.append(row)
        cells = self.keep.short if keep_masked else self.force
        cells.append(row * self.stride + token_id)

    def add_biases(self, row: int, biases: Mapping[int, float]) -> None:
        """Bias tokens of a row."""
        self.bias.extend([*biases], row * self.stride)
        self.values.extend(biases.values())


class Standing:
    """The edits of a request that are the same at every step, put together once.

    Attributes:
        conflict: Why they leave no token, or ``None``.
        forced: The forced token.
        allowed: What is allowed, if that is restricted.
        banned: Lists of banned ids.
        biases: The bias of each biased id.
        left: How many tokens are left.
    """

    __slots__ = ("_open", "allowed", "banned", "biases", "conflict", "forced", "left")

    def __init__(self, recording: Recording) -> None:
        vocab_size = recording.vocab_size
        self.forced = recording.forced
        self.allowed: Sequence[int] | None = None
        self.banned = recording.banned
        self.biases: dict[int, float] = {}
        self.conflict = _clash(recording)
        if self.conflict is None and self.forced is None:
            if recording.allowed:
                self.allowed = _allowed(recording)
                self.banned = ()
                if not self.allowed:
                    self.conflict = "no allowed token is left"
            elif _all_banned(recording.banned, vocab_size):
                self.conflict = "every token is banned"
            self.biases = _biases(recording)
        self._open = self._mask(vocab_size)
        self.left = self._open.count(1)

    def _mask(self, vocab_size: int) -> bytearray:
        """Return for each token of the vocabulary whether it is left."""
        if self.forced is not None or self.allowed is not None:
            mask = bytearray(vocab_size)
            for i in (self.forced,) if self.forced is not None else self.allowed or ():
                mask[i] = 1
            return mask
        mask = bytearray(b"\x01") * vocab_size
        for ids in self.banned:
            for i in ids:
                mask[i] = 0
        return mask

    def permits(self, token_id: int) -> bool:
        """Tell whether these edits leave a token."""
        return bool(self._open[token_id])


def place(
    cells: Cells, row: int, recording: Recording, standing: Standing | None, *, keep_masked: bool
) -> None:
    """Add the edits of one step of a row.

    Args:
        cells: Takes them.
        row: Row of the logits.
        recording: The edits.
        standing: The edits of the row that hold at every step, which are applied before.
        keep_masked: Whether a forced token keeps its logit instead of getting 0.0, so that a
            token that a grammar masked stays masked.
    """
    if recording.banned or recording.allowed or recording.clash or standing is not None:
        conflict = _clash(recording) or _clash_with(standing, recording)
        if conflict is not None:
            cells.conflicts[row] = conflict
            return
    if standing is not None and standing.forced is not None:
        return
    base = row * cells.stride
    if recording.forced is not None:
        cells.force_one(row, recording.forced, keep_masked=keep_masked)
        return
    if recording.allowed:
        allowed = _allowed(recording, standing)
        if not allowed:
            cells.conflicts[row] = "no allowed token is left"
            return
        cells.fill.append(row)
        cells.keep.extend(allowed, base)
    elif _all_banned(recording.banned, recording.vocab_size, standing):
        cells.conflicts[row] = "every token is banned"
        return
    else:
        for ids in recording.banned:
            cells.ban.extend(ids, base)
    if recording.biased:
        cells.add_biases(row, _biases(recording, standing))


def place_standing(cells: Cells, row: int, standing: Standing, *, keep_masked: bool) -> None:
    """Add the edits of a row that hold at every step; arguments as for :func:`place`."""
    if standing.conflict is not None:
        cells.conflicts[row] = standing.conflict
        return
    if standing.forced is not None:
        cells.force_one(row, standing.forced, keep_masked=keep_masked)
        return
    base = row * cells.stride
    if standing.allowed is not None:
        cells.fill.append(row)
        cells.keep.extend(standing.allowed, base)
    for ids in standing.banned:
        cells.ban.extend(ids, base)
    cells.add_biases(row, standing.biases)


def _clash(recording: Recording) -> str | None:
    """Return how the forced token contradicts the other edits, or ``None``."""
    forced = recording.forced
    if forced is None:
        return None
    if recording.clash is not None:
        return recording.clash
    if any(forced not in ids for ids in recording.allowed):
        return f"token {forced} is forced but not allowed"
    if any(forced in ids for ids in recording.banned):
        return f"token {forced} is both forced and banned"
    return None


def _clash_with(standing: Standing | None, recording: Recording) -> str | None:
    """Return how a forced token contradicts edits that always hold, or ``None``."""
    if standing is None:
        return None
    now, always = recording.forced, standing.forced
    if always is None:
        if now is None or standing.permits(now):
            return None
        how = "both forced and banned" if standing.allowed is None else "forced but not allowed"
        return f"token {now} is {how}"
    both = Recording(recording.vocab_size)
    both.add(recording)
    both.force(always)
    return _clash(both)


def _allowed(recording: Recording, standing: Standing | None = None) -> Sequence[int]:
    """Return what all lists of allowed tokens hold, bans taken away."""
    first, *others = recording.allowed
    if not (others or recording.banned or standing):
        return first
    wanted = {*first}.intersection(*others).difference(*recording.banned)
    left = [i for i in first if i in wanted and (standing is None or standing.permits(i))]
    return array("q", left) if isinstance(first, array) else left


def _all_banned(
    banned: Sequence[Sequence[int]], vocab_size: int, standing: Standing | None = None
) -> bool:
    left = vocab_size if standing is None else standing.left
    if sum(map(len, banned)) < left:
        return False  # the usual case, at the price of one addition per list
    out = {i for ids in banned for i in ids if standing is None or standing.permits(i)}
    return len(out) == left


def _biases(recording: Recording, standing: Standing | None = None) -> dict[int, float]:
    """Return the bias of each id.

    Summed here and not by the device, whose order of additions is not fixed and whose float16
    ends at 65,504.
    """
    before = {} if standing is None else standing.biases
    biases: dict[int, float] = {}
    for ids, values in recording.biased:
        for i, value in zip(ids, values, strict=True):
            biases[i] = biases.get(i, 0.0) + value
    for i, value in biases.items():
        had = before.get(i, 0.0)
        biases[i] = max(-MAX_BIAS, min(MAX_BIAS, had + value)) - had
    return biases


class Plan:
    """Edits as index tensors, ready to be applied, more than once if need be.

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

    def __init__(self, cells: Cells, logits: torch.Tensor) -> None:
        """Send the edits to the device of ``logits``, whose layout they are for."""
        import torch

        self.conflicts = cells.conflicts
        fill = cells.fill
        self._fill_all = len(fill) == logits.shape[0]
        if self._fill_all:
            fill = array("q")
        # 64-bit floats ride along as integers.
        values = array("q", cells.values.tobytes())
        parts: tuple[array[int] | _Part, ...] = (
            fill,
            cells.keep,
            cells.bias,
            cells.ban,
            cells.force,
            values,
        )
        ends = [*accumulate(len(part) for part in parts)]
        sent: torch.Tensor | None = None
        if ends[-1]:
            sent = _packed(parts, ends[-1])
            if logits.is_cuda:
                sent = sent.pin_memory().to(logits.device, non_blocking=True)

        def cut(part: Sized, end: int) -> torch.Tensor | None:
            # Each operation of torch costs microseconds, so none without need.
            if sent is None or not len(part):
                return None
            return sent if len(part) == ends[-1] else sent[end - len(part) : end]

        self._fill, self._keep, self._bias, self._ban, self._force, bits = (
            cut(part, end) for part, end in zip(parts, ends, strict=True)
        )
        self._bias_values = None if bits is None else bits.view(torch.float64).to(logits.dtype)

    def apply(self, logits: torch.Tensor) -> None:
        """Edit ``logits`` in place: shape ``(rows, vocab)``, laid out as the plan was made for."""
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


def _packed(parts: Sequence[array[int] | _Part], length: int) -> torch.Tensor:
    """Return all indices one after the other."""
    import torch

    if not any(isinstance(part, _Part) and part.long for part in parts):
        packed = array("q")
        for part in parts:
            packed.extend(part.short if isinstance(part, _Part) else part)
        return torch.frombuffer(packed, dtype=torch.int64)
    sent = torch.empty(length, dtype=torch.int64)
    at = 0
    for part in parts:
        short, long = (part.short, part.long) if isinstance(part, _Part) else (part, [])
        if short:
            sent[at : at + len(short)] = torch.frombuffer(short, dtype=torch.int64)
            at += len(short)
        for ids, base in long:
            read = torch.frombuffer(ids, dtype=torch.int64)
            torch.add(read, base, out=sent[at : at + len(ids)])
            at += len(ids)
    return sent


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
