"""The check of rows that a processor computed itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    import torch


def check_computed(result: object, logits: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Check the rows that a processor computed.

    Args:
        result: The return value of :meth:`~sglang_lp.processor.LogitProcessor.compute`.
        logits: The logits that it got, for their device.
        shape: The shape that ``result`` must have.

    Raises:
        ProcessorFault: ``result`` is no tensor of floats of this shape on the same device.
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
