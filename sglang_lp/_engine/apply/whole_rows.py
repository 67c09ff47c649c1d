"""Rows of logits that processors compute themselves: called, checked and written back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from sglang_lp._engine.apply.device import index_on, send
from sglang_lp.errors import ProcessorFault, SglangLpError
from sglang_lp.processor import check_computed

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.turns.turn import Whole


class NoTokenLeft(ProcessorFault):
    """A computed row has no finite logit, though all are numbers."""


def compute(
    logits: torch.Tensor, calls: Mapping[int, Sequence[Whole]], grammar_rows: Collection[int]
) -> dict[int, SglangLpError]:
    """Call the processors that compute whole rows, each class once for all its rows.

    Args:
        logits: Shape ``(rows, vocab)``, edited in place.
        calls: For each row of the logits the processors that compute it, in order.
        grammar_rows: Rows that a grammar has masked.

    Returns:
        For each row that a processor failed to compute, the error. Its later processors are not
        called.
    """
    failed: dict[int, SglangLpError] = {}
    left = {index: [*wholes] for index, wholes in calls.items()}
    while left:
        groups: dict[type, list[int]] = {}
        for index, wholes in left.items():
            groups.setdefault(wholes[0].turn.processor.kind, []).append(index)
        # First the classes that no other row needs later, so that each class is called once.
        later = {whole.turn.processor.kind for wholes in left.values() for whole in wholes[1:]}
        for kind in [kind for kind in groups if kind not in later] or groups:
            group = [(index, left[index].pop(0)) for index in groups[kind]]
            failed |= _compute(logits, group, grammar_rows)
        left = {index: wholes for index, wholes in left.items() if wholes and index not in failed}
    return failed


def _compute(
    logits: torch.Tensor, group: list[tuple[int, Whole]], grammar_rows: Collection[int]
) -> dict[int, SglangLpError]:
    """Call one processor for rows of the logits; return the error of each row that fails."""
    indices = [index for index, _ in group]
    turn = group[0][1].turn
    try:
        rows = index_on(logits.device, indices)
        result = turn.compute(
            logits.index_select(0, rows),
            [whole.request for _, whole in group],
            [whole.custom_params for _, whole in group],
        )
        check_computed(result, logits, (len(indices), logits.shape[1]))
        write_back(logits, indices, rows, result, grammar_rows)
    except BaseException as error:  # noqa: BLE001 - a processor's fault ends its own request only
        if len(group) > 1:  # one row at a time, to find the request that fails
            failed: dict[int, SglangLpError] = {}
            for one in group:
                failed |= _compute(logits, [one], grammar_rows)
            return failed
        ((index, whole),) = group
        fault = whole.turn.fault(error, f"at token {whole.request.position}")
        if type(error) is NoTokenLeft and isinstance(fault, ProcessorFault):
            fault = NoTokenLeft(str(fault), fault.processor)
        return {index: fault}
    return {}


def write_back(
    logits: torch.Tensor,
    indices: Sequence[int],
    rows: torch.Tensor,
    result: torch.Tensor,
    grammar_rows: Collection[int],
) -> None:
    """Write computed rows into the logits; tokens that a grammar masked stay masked.

    Args:
        logits: Shape ``(any, vocab)``, edited in place.
        indices: Indices of the rows.
        rows: The same indices on the device.
        result: Shape ``(rows, vocab)``.
        grammar_rows: Rows that a grammar has masked.

    Raises:
        NoTokenLeft: A row has no finite logit. No row is written then.
        ProcessorFault: A row has NaN or +inf that the model did not write itself. No row is written
            then.
    """
    import torch

    result = result.to(logits.dtype)  # first: a number may be finite in one type only
    guarded = [index in grammar_rows for index in indices]
    if any(guarded):
        masked = logits.index_select(0, rows) == -math.inf
        if not all(guarded):
            masked &= send(torch.tensor(guarded), logits.device)[:, None]
        result = result.masked_fill(masked, -math.inf)
    highest = result.amax(-1)
    if not bool(highest.isfinite().all()) and any(_spoiled(highest, logits.index_select(0, rows))):
        if bool((highest == -math.inf).any()):
            raise NoTokenLeft("it left no finite logit")
        raise ProcessorFault("it left NaN or +inf among the logits")
    logits.index_copy_(0, rows, result)


def _spoiled(highest: torch.Tensor, before: torch.Tensor) -> list[bool]:
    """Tell which rows lost their last token, or their finite logits, since ``before``.

    A row in which the model itself wrote no finite logit never counts.

    Args:
        highest: Shape ``(rows,)``: the highest logit of each row, NaN if there is one.
        before: Shape ``(rows, vocab)``: the rows as they were.
    """
    was = before.amax(-1)
    empty = (highest == -math.inf) & (was != -math.inf)
    return (empty | (~highest.isfinite() & was.isfinite())).tolist()
