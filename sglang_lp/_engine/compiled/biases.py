"""Biases of one row, summed on the host.

The order of additions on a device is not fixed, and float16 ends at 65,504.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias

from sglang_lp.caches import shared_by_copies
from sglang_lp.edits import MAX_BIAS
from sglang_lp.edits.ids import LONG, Ids, merged

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits.recording import Recording

#: Ids, each once, and their biases: few of them in an array, many in a tensor of float64.
Biases: TypeAlias = "tuple[list[int] | torch.Tensor, array[float] | torch.Tensor]"


def biases_of(recording: Recording, before: Mapping[int, float] | None = None) -> Biases:
    """Return the sum of the biases of each id.

    Args:
        recording: Has the biases.
        before: Biases by id that are applied before these; a sum of both is at most ``MAX_BIAS``
            either way.
    """
    if sum(len(ids) for ids, _ in recording.biased) >= LONG:
        return _many_biases(recording, before)
    if len(recording.biased) == 1 and before is None:
        ((ids, values),) = recording.biased
        own = array("d", [values]) * len(ids) if isinstance(values, float) else values
        if len({*ids}) == len(ids) and 0.0 not in own:  # 0.0 + -0.0 is 0.0
            return [*ids], own
    biases: dict[int, float] = {}
    for ids, values in recording.biased:
        each = repeat(values, len(ids)) if isinstance(values, float) else values
        for i, value in zip(ids, each, strict=True):
            biases[i] = biases.get(i, 0.0) + value
    for i, value in biases.items():
        had = 0.0 if before is None else before.get(i, 0.0)
        biases[i] = max(-MAX_BIAS, min(MAX_BIAS, had + value)) - had
    return [*biases], array("d", biases.values())


def _many_biases(recording: Recording, before: Mapping[int, float] | None) -> Biases:
    lists = tuple(ids if isinstance(ids, Ids) else Ids(ids) for ids, _ in recording.biased)
    values = tuple(cache_key(values) for _, values in recording.biased)
    known = all(ids.is_lasting for ids in lists)
    ids, sums, cut = (_summed if known else _summed.__wrapped__)(lists, values)
    if not before:
        return ids, cut
    import torch

    had = torch.tensor([before.get(i, 0.0) for i in ids.tolist()], dtype=torch.float64)
    return ids, (had + sums).clamp_(-MAX_BIAS, MAX_BIAS) - had


@shared_by_copies
def _summed(
    lists: tuple[Ids, ...], values: tuple[bytes | float, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the ids of several lists, each once; the sums of their values; the clamped sums."""
    import torch

    known = all(ids.is_lasting for ids in lists)
    ids, places = (merged if known else merged.__wrapped__)(lists)
    parts = [
        torch.full((len(ids),), own, dtype=torch.float64)
        if isinstance(own, float)
        else torch.frombuffer(bytearray(own), dtype=torch.float64)
        for ids, own in zip(lists, values, strict=True)
    ]
    sums = torch.cat(parts)
    if places is not None:  # bincount adds in the order of the lists, from 0.0 on
        sums = places.bincount(sums)
    return ids, sums, sums.clamp(-MAX_BIAS, MAX_BIAS)


def cache_key(values: array[float] | float) -> bytes | float:
    """Return a cache key of biases."""
    return values if isinstance(values, float) else values.tobytes()
