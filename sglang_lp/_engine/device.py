"""Sending what was put together on the host to the device of the logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["index_on", "send"]


def send(indices: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return indices on the device of the logits, without waiting for it."""
    if device.type == "cuda":
        return indices.pin_memory().to(device, non_blocking=True)
    return indices


def index_on(device: torch.device, rows: Sequence[int]) -> torch.Tensor:
    """Return the indices of rows on a device; indexing with a list would wait for its copy."""
    import torch

    return send(torch.tensor(rows, dtype=torch.int64), device)
