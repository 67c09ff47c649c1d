"""The reasons of a thinking budget's edits, for a trace of the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lp.builtins.thinking.rules import close_by, tokens_left

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.params import BudgetParams
    from sglang_lp.builtins.thinking.progress import Progress


def why(params: BudgetParams, progress: Progress) -> str:
    """Return the rule of a budget that applied, empty if nothing was edited.

    Args:
        params: The request's own parameters.
        progress: The state of the request after ``edit``.
    """
    if not progress.state.is_open:
        return _why_outside(params, progress)
    inside, budget = progress.inside, params.limit
    if over := _why_over(params, progress):
        return over
    if inside < params.min_thinking_tokens:
        return f"{inside} of at least {params.min_thinking_tokens} tokens thought"
    if params.soft_thinking_budget is not None and inside >= params.soft_thinking_budget:
        return f"{inside} tokens thought, and the soft budget is {params.soft_thinking_budget}"
    if params.eos_token_ids:
        return "the answer may not end while it thinks"
    left = budget - inside
    return f"tokens left to think: {left}; a character that would take more is not begun"


def _why_outside(params: BudgetParams, progress: Progress) -> str:
    """Return the reasons of the edits outside of blocks, empty if there are none."""
    reasons = []
    if progress.owed:
        reasons.append(f"the answer lacks {progress.owed} of {params.min_answer_tokens} tokens")
    if progress.position >= close_by(params):
        reasons.append("the tokens that are left are for the answer")
    return "; ".join(reasons)


def _why_over(params: BudgetParams, progress: Progress) -> str:
    """Say why the open block is over; nothing if it is not."""
    if progress.inside >= params.limit:
        return f"{params.limit} of {params.limit} tokens thought"
    if progress.position >= close_by(params):
        return "the tokens that are left are for the answer"
    if tokens_left(params, progress) <= 0:
        return f"{params.total} of {params.total} tokens thought in all blocks"
    if not progress.looped:
        return ""
    if params.min_new_share is None:
        return f"the same tokens came {params.min_count} times"
    return "the block ends with a loop"
