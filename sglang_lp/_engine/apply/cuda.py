"""A GPU as the device of the logits; called through :mod:`sglang_lp._engine.apply.device`.

Copies go through pinned memory and do not make the host wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.half import scale_below_highest

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.apply.near_top import NearTop
    from sglang_lp._engine.compiled.edits import CompiledEdits

ROW_BY_ROW = False


def send(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the numbers on the device, without a wait."""
    return numbers.pin_memory().to(device, non_blocking=True)


def start_copy(numbers: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Return where the copy arrives, and the event after which it is complete."""
    import torch

    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    done: Any = torch.get_device_module(numbers.device).Event()
    done.record()
    return host, done


def as_numpy(_logits: torch.Tensor) -> Any:
    """Return ``None``: numpy cannot read the device."""
    return None


def fill(flat: torch.Tensor, indices: torch.Tensor, value: float) -> None:
    """Write one value at indices."""
    flat.index_fill_(0, indices, value)


def mask_rows(rows: torch.Tensor, edits: CompiledEdits) -> None:
    """Set the logits that compiled edits exclude to ``-inf``, with one kernel."""
    import torch

    masks = edits.device_masks.get(rows.device)
    if masks is None:
        import torch

        excluded = torch.frombuffer(edits.mask.bytes, dtype=torch.uint8) == 0
        masks = edits.device_masks[rows.device] = (send(excluded, rows.device),)
    rows.masked_fill_(masks[0], -math.inf)


def scale(logits: torch.Tensor, factors: torch.Tensor) -> None:
    """Multiply the logits of each row, with one kernel; SGLang's are float32."""
    import torch

    if logits.dtype == torch.float16:
        scale_below_highest(logits, factors)
    else:
        logits.mul_(factors)


def keep_near_top(logits: torch.Tensor, kept: Sequence[NearTop]) -> None:
    """In some rows, set the logits far below the row's largest to ``-inf``."""
    lowest = [_lowest_near_top(logits, *one) for one in kept]  # before any row is masked
    for (rows, _), least in zip(kept, lowest, strict=True):
        own = logits.index_select(0, rows)
        logits.index_copy_(0, rows, own.masked_fill_(own < least, -math.inf))


def _lowest_near_top(
    logits: torch.Tensor, rows: torch.Tensor, sigmas: torch.Tensor
) -> torch.Tensor:
    """Return the smallest logit of each row that stays; NaN if a row has NaN or ``+inf``."""
    import torch

    own = logits.index_select(0, rows)
    highest = own.amax(1, keepdim=True)  # not rounded, because the largest logit has to stay
    own = own.float()
    masked = own == -math.inf
    count = own.shape[1] - masked.sum(1, keepdim=True)
    mean = own.masked_fill_(masked, 0.0).sum(1, keepdim=True) / count
    off = torch.linalg.vector_norm(own.sub_(mean).masked_fill_(masked, 0.0), dim=1, keepdim=True)
    lowest: torch.Tensor = highest - sigmas * (off / count.sqrt())
    return lowest
