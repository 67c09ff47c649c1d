"""Rows that keep only logits near their largest (top-n-sigma): the last edit of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class NearTop(NamedTuple):
    """Rows that keep only logits near their largest.

    Attributes:
        rows: Rows of the logits, each once; shape ``(rows,)``, int64, on the device.
        sigmas: How near, in standard deviations; shape ``(rows, 1)``, float32, on the device.
    """

    rows: torch.Tensor
    sigmas: torch.Tensor
