"""Rows of logits that processors computed themselves: checked, and put back into the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lp._engine.apply.device import index_on, send
from sglang_lp._engine.step import end
from sglang_lp.errors import ProcessorFault
from sglang_lp.faults import as_fault
from sglang_lp.processor import check_computed

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.step import Step
    from sglang_lp.processor import Whole

__all__ = ["compute", "spoiled", "write_back"]


def compute(step: Step) -> None:
    """Call what computes on whole rows: each class for all its rows at once.

    What a row has several of comes in its order. The rows of a request that ends leave
    ``step.dense``.
    """
    left = {index: [*wholes] for index, wholes in step.dense.items()}
    while left:
        groups: dict[type, list[int]] = {}
        for index, wholes in left.items():
            groups.setdefault(wholes[0].processor.kind, []).append(index)
        # First those that no other row has later, so that each class is called once.
        later = {whole.processor.kind for wholes in left.values() for whole in wholes[1:]}
        for kind in [kind for kind in groups if kind not in later] or groups:
            _compute(step, [(index, left[index].pop(0)) for index in groups[kind]])
        left = {index: wholes for index, wholes in left.items() if wholes and index in step.dense}


def _compute(step: Step, group: list[tuple[int, Whole]]) -> None:
    """Call one processor for rows of the logits."""
    indices = [index for index, _ in group]
    processor = group[0][1].processor
    try:
        rows = index_on(step.logits.device, indices)
        result = processor.compute(
            step.logits.index_select(0, rows),
            [whole.request for _, whole in group],
            [whole.custom_params for _, whole in group],
        )
        check_computed(result, step.logits, (len(indices), step.vocab_size))
        write_back(step, indices, rows, result)
    except BaseException as error:  # noqa: BLE001 - a processor's fault ends its own request only
        if len(group) > 1:  # find out whose fault it was
            for one in group:
                _compute(step, [one])
            return
        ((index, whole),) = group
        del step.dense[index]
        row = step.rows[index // step.width]
        if row is not None:
            at = f"at token {whole.request.position}"
            end(step, index, row, as_fault(str(processor.name), at, error))


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
