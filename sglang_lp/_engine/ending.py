"""Ends of requests whose rows of logits leave no token to sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sglang_lp._engine.apply.device import Copy
from sglang_lp._engine.apply.sampled import can_sample
from sglang_lp._engine.apply.whole_rows import NoTokenLeft
from sglang_lp._engine.step import Step, end
from sglang_lp.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from sglang_lp._engine.apply.plan import Plan
    from sglang_lp._engine.history.row import Row
    from sglang_lp.errors import SglangLpError

_MASKED = (
    "the logits, the grammar, min_new_tokens or logit_bias mask every token that its processors "
    "leave"
)


def end_not_finite(
    step: Step, indices: Sequence[int], rows: torch.Tensor, before: torch.Tensor
) -> None:
    """End the requests of rows from which nothing can be sampled, with one wait for the device.

    SGLang still samples a token, which the client does not get: from the row before the edits, or
    from zeros where that row is as bad.

    Args:
        step: The step, with all edits applied.
        indices: The rows to look at.
        rows: The same on the device.
        before: These rows before the edits.
    """
    import torch

    after = step.logits.index_select(0, rows)
    highest = Copy(torch.stack((before.amax(-1), after.amax(-1)))).read()
    for i, (index, was, now) in enumerate(zip(indices, *highest, strict=True)):
        row = step.rows[index // step.width]
        if row is None or can_sample(now, row.host.temperature):
            continue
        was_good = can_sample(was, row.host.temperature)
        step.logits[index] = before[i] if was_good else 0.0
        if was_good and not row.host.spoils:
            _end_conflict(step, index, _MASKED, masked=True)
        else:
            end_at(step, index, row.host.not_finite(_at(step, index, row), empty=was == -math.inf))


def refuse_repeated(row: Row) -> None:
    """End a request whose drafted tokens cannot be seen."""
    row.end(
        Unsupported(
            f"{row.name} needs the history of its request, which speculative "
            "decoding hides: use a server without it"
        )
    )


def end_conflicts(step: Step, plan: Plan) -> None:
    """End the requests of rows whose edits leave no token."""
    for index, why in plan.conflicts.items():
        _end_conflict(step, index, why, masked=False)


def _end_conflict(step: Step, index: int, why: str, *, masked: bool) -> None:
    row = step.rows[index // step.width]
    if row is not None:
        masked = masked and (row.host.restricted or index in step.grammar_rows)
        fail_at(step, index, row.host.no_token_left(_at(step, index, row), why, masked=masked))


def _at(step: Step, index: int, row: Row) -> int:
    """Return the index in the answer of the token that a row of the logits is for."""
    position, _ = step.nodes.get(index, (row.position, None))
    return max(0, position - row.host.resumed)


def contradicts(step: Step, index: int, error: Exception) -> bool:
    """End a request whose own masks and computed row leave no token; tell whether that is so."""
    row = step.rows[index // step.width]
    if row is None or type(error) is not NoTokenLeft:
        return False
    if not (row.host.restricted or index in step.grammar_rows):
        return False
    _end_conflict(step, index, _MASKED, masked=True)
    return True


def fail_at(step: Step, index: int, fault: Exception) -> None:
    """End the request of a row of the logits with a fault of its processor."""
    row = step.rows[index // step.width]
    if row is not None:
        position, _ = step.nodes.get(index, (None, None))
        end(step, index, row, row.fault(fault, position))


def end_at(step: Step, index: int, error: SglangLpError) -> None:
    """End the request of a row of the logits with an error."""
    row = step.rows[index // step.width]
    if row is not None:
        end(step, index, row, error)
