"""The report of an answer's thinking blocks: the length of each, and the rule that ended it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins.thinking.finder import EndCause
from sglang_lp.builtins.thinking.loops import ends_with_loop
from sglang_lp.builtins.thinking.rules import close_by

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.blocks import AnswerBlock
    from sglang_lp.builtins.thinking.params import BudgetParams


def report_blocks(
    params: BudgetParams,
    closing: tuple[int, ...],
    blocks: Sequence[AnswerBlock],
    output_ids: Sequence[int],
    forced: Sequence[Sequence[int]],
) -> list[dict[str, Any]]:
    """Return ``tokens`` and ``ended`` of each block.

    Args:
        params: The budget's parameters.
        closing: The tokens that the budget forces to close a block.
        blocks: The blocks of the answer, in order.
        output_ids: The answer.
        forced: Spans of positions whose token was forced: the first, and the one after the last.
    """
    spent, reports = 0, []
    for block in blocks:
        ended = None if block.ended is None else "model"
        if block.ended is EndCause.TOOL_CALL:
            ended = "tool_call"
        elif block.end is not None and _holds_position(forced, block.end):
            begun = _closing_begun(block.end, closing, output_ids, forced)
            ended = _rule(params, block, spent, output_ids[:begun])
        elif block.end is None and params.at_limit == "stop" and _is_over(params, block, spent):
            ended = "budget"
        reports.append({"tokens": block.tokens, "ended": ended})
        spent += block.tokens + min(0, block.start)
    return reports


def _is_over(params: BudgetParams, block: AnswerBlock, spent: int) -> bool:
    """Tell whether a block has as many tokens as it may have."""
    generated = block.tokens + min(0, block.start)
    return block.carried + block.tokens >= params.limit or spent + generated >= params.total


def _closing_begun(
    end: int, closing: tuple[int, ...], output_ids: Sequence[int], forced: Sequence[Sequence[int]]
) -> int:
    """Return the position of the first forced token of the closing that ends at ``end``."""
    begun = end
    for back in range(1, len(closing)):
        at = end - back
        if output_ids[at] != closing[-1 - back] or not _holds_position(forced, at):
            break
        begun = at
    return begun


def _rule(params: BudgetParams, block: AnswerBlock, spent: int, output_ids: Sequence[int]) -> str:
    """Return the rule that closed a block after these tokens of the output."""
    inside = block.carried + len(output_ids) - block.start
    soft = params.soft_thinking_budget
    own = output_ids[max(0, block.start) :]
    spends = inside >= params.limit or spent + len(own) >= params.total
    if spends or len(output_ids) >= close_by(params):
        return "budget"
    if params.watched and ends_with_loop(params, own):
        return "loop"
    return "soft" if soft is not None and inside >= soft else "early_end"


def _holds_position(spans: Sequence[Sequence[int]], position: int) -> bool:
    return any(start <= position < stop for start, stop in spans)
