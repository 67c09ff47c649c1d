"""Sending numbers to the device of the logits, and fetching some from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["Copy", "index_on", "send"]


def send(indices: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return indices on the device of the logits, without waiting for it."""
    if device.type == "cuda":
        return indices.pin_memory().to(device, non_blocking=True)
    return indices


def index_on(device: torch.device, rows: Sequence[int]) -> torch.Tensor:
    """Return the indices of rows on a device; indexing with a list would wait for its copy."""
    import torch

    return send(torch.tensor(rows, dtype=torch.int64), device)


class Copy:
    """Whole numbers or truth values on their way from the device to the host.

    Args:
        numbers: A tensor of any shape, which may be written over afterwards.
    """

    def __init__(self, numbers: torch.Tensor) -> None:
        import torch

        self._done: Any = None
        if numbers.is_cpu:
            self._host = numbers.clone()
            return
        self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        self._host.copy_(numbers, non_blocking=True)
        self._done = torch.get_device_module(numbers.device).Event()
        self._done.record()

    def read(self) -> Any:
        """Wait for the copy, and return the numbers in lists of the tensor's shape."""
        if self._done is not None:
            self._done.synchronize()
        return self._host.tolist()
