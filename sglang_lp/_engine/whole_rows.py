"""Rows of logits that processors computed themselves: checked, and put back into the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lp._engine.device import index_on, send
from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.step import Step

__all__ = ["check_computed", "compute", "spoiled", "write_back"]


def compute(step: Step, indices: list[int]) -> None:
    """Call a processor that computes on whole rows, for all its rows at once."""
    group = [row for row in (step.rows[index] for index in indices) if row is not None]
    try:
        rows = index_on(step.logits.device, indices)
        result = group[0].processor.compute(
            step.logits.index_select(0, rows),
            [row.request for row in group],
            [step.custom_params[index] for index in indices],
        )
        check_computed(result, step.logits, (len(indices), step.vocab_size))
        write_back(step, indices, rows, result)
        for row in group:
            row.acts.note(row.request.position, forced=False)
    except BaseException as error:  # noqa: BLE001 - see _visit
        if len(group) == 1:
            group[0].end(group[0].fault(error))
        else:  # find out whose fault it was
            for index in indices:
                compute(step, [index])


def check_computed(result: object, logits: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Check what a processor that computes on whole rows returned.

    Args:
        result: That.
        logits: What it computed from, for its device.
        shape: Expected.

    Raises:
        ProcessorFault: Not a tensor of floats of this shape on the same device.
    """
    import torch

    if not isinstance(result, torch.Tensor):
        came = type(result).__name__
    elif tuple(result.shape) != shape or not result.is_floating_point():
        came = f"{result.dtype} of shape {tuple(result.shape)}"
    elif result.device != logits.device:
        came = f"one on {result.device}"
    else:
        return
    raise ProcessorFault(
        f"it returned {came}, expected a tensor of floats of shape {shape} on {logits.device}"
    )


def write_back(
    step: Step, indices: Sequence[int], rows: torch.Tensor, result: torch.Tensor
) -> None:
    """Put computed rows back; what a grammar masked stays masked.

    Args:
        step: Has the logits.
        indices: Of the rows.
        rows: The same on the device.
        result: Shape ``(rows, vocab)``.

    Raises:
        ProcessorFault: A row has no finite logit, or NaN or +inf that the model did not write
            itself. None is put back then.
    """
    import torch

    logits = step.logits
    result = result.to(logits.dtype)  # first: a number may be finite in one type only
    guarded = [index in step.masked for index in indices]
    if any(guarded):
        shut = logits.index_select(0, rows) == -math.inf
        if not all(guarded):
            shut &= send(torch.tensor(guarded), logits.device)[:, None]
        result = result.masked_fill(shut, -math.inf)
    highest = result.amax(-1)
    if not bool(highest.isfinite().all()) and any(spoiled(highest, logits.index_select(0, rows))):
        raise ProcessorFault("it left no finite logit, or NaN or +inf among them")
    logits.index_copy_(0, rows, result)


def spoiled(highest: torch.Tensor, before: torch.Tensor) -> list[bool]:
    """Tell which rows lost their last token, or their finite logits, since ``before``.

    A row that the model itself left without is not judged, whoever shares its batch.

    Args:
        highest: Shape ``(rows,)``: the highest logit of each row, NaN if there is one.
        before: Shape ``(rows, vocab)``: the rows as they were.
    """
    was = before.amax(-1)
    empty = (highest == -math.inf) & (was != -math.inf)
    return (empty | (~highest.isfinite() & was.isfinite())).tolist()
