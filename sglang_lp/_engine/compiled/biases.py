"""The biases of one row, summed on the host."""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias

from sglang_lp.copies import shared_by_copies
from sglang_lp.edits import MAX_BIAS
from sglang_lp.edits.ids import LONG, Ids, merged

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.compiled.standing import Standing
    from sglang_lp.edits.recording import Recording

__all__ = ["Biases", "biases_of", "bits"]

#: Ids, each once, and the bias of each: few of them in an array, many in a tensor of float64.
Biases: TypeAlias = "tuple[list[int] | torch.Tensor, array[float] | torch.Tensor]"


def biases_of(recording: Recording, standing: Standing | None = None) -> Biases:
    """Return the bias of each id.

    Summed here and not by the device, whose order of additions is not fixed and whose float16
    ends at 65,504.
    """
    if sum(len(ids) for ids, _ in recording.biased) >= LONG:
        return _many_biases(recording, standing)
    if len(recording.biased) == 1 and standing is None:
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
        had = 0.0 if standing is None else standing.bias_of(i)
        biases[i] = max(-MAX_BIAS, min(MAX_BIAS, had + value)) - had
    return [*biases], array("d", biases.values())


def _many_biases(recording: Recording, standing: Standing | None) -> Biases:
    lists = tuple(ids if isinstance(ids, Ids) else Ids(ids) for ids, _ in recording.biased)
    values = tuple(bits(values) for _, values in recording.biased)
    known = all(ids.lasts for ids in lists)
    ids, sums, cut = (_summed if known else _summed.__wrapped__)(lists, values)
    if standing is None or not len(standing.biases[0]):
        return ids, cut
    import torch

    had = torch.tensor([standing.bias_of(i) for i in ids.tolist()], dtype=torch.float64)
    return ids, (had + sums).clamp_(-MAX_BIAS, MAX_BIAS) - had


@shared_by_copies
def _summed(
    lists: tuple[Ids, ...], values: tuple[bytes | float, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the ids of several lists, each once; the sums of their values; and these cut."""
    import torch

    known = all(ids.lasts for ids in lists)
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


def bits(values: array[float] | float) -> bytes | float:
    """Return a cache key of biases."""
    return values if isinstance(values, float) else values.tobytes()
