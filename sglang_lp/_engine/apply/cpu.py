"""The CPU as the device of the logits; called through :mod:`sglang_lp._engine.apply.device`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.half import scale_below_highest
from sglang_lp.edits.ids import tensor_of

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.near_top import NearTop
    from sglang_lp._engine.compiled.edits import CompiledEdits

_MINUS_INF = -math.inf

#: Types of integers by their size in bytes.
_INTEGERS = {2: "int16", 4: "int32", 8: "int64"}

#: Most allowed ids of a row that are copied without a mask, and adjacent rows from which on masks
#: are worth making (``make bench PART=bounds``, ``catalogue-subset``).
_FEW, _MANY_ROWS = 16_384, 16

#: Dtype of the logits that were masked last: a server's never changes.
_latest_dtype: torch.dtype | None = None

ROW_BY_ROW = True


def serves(device: torch.device) -> bool:
    """Tell whether a device is the CPU."""
    return device.type == "cpu"


def has(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is on the CPU."""
    return tensor.is_cpu


def send(numbers: torch.Tensor, _device: torch.device) -> torch.Tensor:
    """Return the numbers themselves."""
    return numbers


def start_copy(numbers: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Return a copy, and ``None`` because it is complete."""
    return numbers.clone(), None


def as_numpy(logits: torch.Tensor) -> Any:
    """Return the same memory as an array, or ``None`` if numpy lacks the dtype."""
    import torch

    return logits.numpy() if logits.dtype == torch.float32 else None


def fill(flat: torch.Tensor, indices: torch.Tensor, value: float) -> None:
    """Write one value at indices, with all threads; ``index_fill_`` uses one.

    ``disallowed-*`` of ``benchmarks/cost`` shows the difference.
    """
    flat[indices] = value


def mask_rows(rows: torch.Tensor, edits: CompiledEdits) -> None:
    """Set the logits that compiled edits exclude to ``-inf``.

    Works on the bits of the logits, one row at a time (``make bench PART=bounds``).
    """
    global _latest_dtype  # noqa: PLW0603 - of the process, see there
    dtype = _latest_dtype = rows.dtype
    masks = edits.device_masks.get(dtype)
    if masks is None:
        allowed = edits.allowed
        if allowed is not None and len(allowed) <= _FEW and len(rows) < _MANY_ROWS:
            places = tensor_of(allowed)
            for row in rows:
                kept = row.index_select(0, places)
                row.fill_(_MINUS_INF).index_copy_(0, places, kept)
            return
        if edits.is_fresh and allowed is None and len(rows) == 1:
            # It may be the only use. A second one is worth the masks.
            edits.is_fresh = False
            for ids in edits.banned:
                rows[0, tensor_of(ids)] = _MINUS_INF
            return
        masks = edits.device_masks[dtype] = _bit_masks(edits, dtype)
    keep, put = masks
    for row in rows.view(keep.dtype):
        row.bitwise_and_(keep).bitwise_or_(put)


def precompute_mask(edits: CompiledEdits) -> None:
    """Make the masks that :func:`mask_rows` needs, if the dtype of the logits is known."""
    if edits.allowed is not None and len(edits.allowed) <= _FEW:
        return  # masks are worth making for many rows only
    if _latest_dtype is not None and _latest_dtype not in edits.device_masks:
        edits.device_masks[_latest_dtype] = _bit_masks(edits, _latest_dtype)


def scale(logits: torch.Tensor, factors: torch.Tensor) -> None:
    """Multiply the logits of the rows that have a factor."""
    import torch

    if logits.dtype == torch.float16:
        scale_below_highest(logits, factors)
        return
    most = torch.finfo(logits.dtype).max
    for row, factor in enumerate(factors.view(-1).tolist()):
        if factor != 1:
            logits[row].mul_(factor).clamp_(max=most)


def keep_near_top(logits: torch.Tensor, kept: Sequence[NearTop]) -> None:
    """In some rows, set the logits far below the row's largest to ``-inf``."""
    import numpy as np
    import torch
    from torch.nn.functional import threshold

    least: dict[int, float] = {}
    room = torch.empty(logits.shape[-1])
    for rows, sigmas in kept:
        for row, count in zip(rows.tolist(), sigmas.view(-1).tolist(), strict=True):
            least[row] = min(count, least.get(row, math.inf))
    for row, count in least.items():
        own = logits[row]
        numbers = own.float()
        lowest = np.float32(_lowest_near_top(numbers, count, room))
        if numbers is own:  # threshold is faster, and masks logits that equal its bound
            below = float(np.nextafter(lowest, np.float32(_MINUS_INF)))
            threshold(own, below, _MINUS_INF, inplace=True)
        else:
            own.masked_fill_(numbers < float(lowest), _MINUS_INF)


def _lowest_near_top(numbers: torch.Tensor, sigmas: float, room: torch.Tensor) -> float:
    """Return the smallest logit of a row that stays; NaN if the row has NaN or ``+inf``.

    Args:
        numbers: The logits of the row, float32.
        sigmas: How many standard deviations below the largest logit a logit may be.
        room: Overwritten; as large as a row, float32.
    """
    import torch

    array = numbers.numpy()  # which finds the largest logit faster than torch
    highest, total = float(array.max()), float(numbers.sum())
    if total == _MINUS_INF and highest > _MINUS_INF:
        # Some tokens are masked. numpy leaves them out faster than torch.
        numbers = torch.from_numpy(array[array > _MINUS_INF])
        total = float(numbers.sum())
    count = len(numbers)
    off = torch.sub(numbers, total / count, out=room[:count])
    return highest - sigmas * math.sqrt(float(off.dot(off)) / count)


def _bit_masks(edits: CompiledEdits, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the bits of each logit that stay, and the bits that are set."""
    import numpy as np
    import torch

    kind = _INTEGERS[dtype.itemsize]
    minus_inf = int(torch.tensor(_MINUS_INF, dtype=dtype).view(getattr(torch, kind)))
    keep = np.negative(np.frombuffer(edits.mask.bytes, dtype=np.int8), dtype=kind)
    put = np.invert(keep)
    put &= minus_inf
    return torch.from_numpy(keep), torch.from_numpy(put)
