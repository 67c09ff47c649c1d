"""Products of float16 logits, of which the largest number is 65,504."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def scale_below_highest(logits: torch.Tensor, factors: torch.Tensor) -> None:
    """Multiply the distance of each logit from the largest of its row, in place.

    The probabilities equal those of the products, but no logit overflows to ``+inf``, and no row
    loses all its finite logits. A row with NaN or ``+inf`` is multiplied as it is.

    Args:
        logits: Shape ``(rows, vocab)``, float16.
        factors: Shape ``(rows, 1)``, float32; a row with a factor of 1 keeps its bits.
    """
    highest = logits.amax(1, keepdim=True)
    logits.sub_(highest.where(highest.isfinite() & (factors != 1), 0)).mul_(factors)
